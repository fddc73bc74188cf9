"""A load of the sharded store ends on all ranks alike, whatever happens to one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from lmcache.v1.pcp_shard import load as pcp_load
from lmcache.v1.pcp_shard.transport import ShardTransportError

from tests.patches.lmcache.deadline import wait_until
from tests.patches.lmcache.shard_ranks import TOKENS, Rank, check_paged, load_all, on_all, ranks

pytestmark = pytest.mark.patched_only(reason="stock has no sharded store")

STOCK_REASONS: dict[str, str] = {}

CHUNKS = 8
PROMPT = list(range(CHUNKS * TOKENS))
END = len(PROMPT)


@pytest.fixture
def group() -> list[Rank]:
    """Three ranks that hold a prompt together."""
    return holding(ranks())


def holding(group: list[Rank]) -> list[Rank]:
    for rank in group:
        rank.hold(PROMPT)
    return group


@pytest.mark.parametrize("world", [1, 2, 3, 8, 9])
def test_all_ranks_get_every_chunk(world: int) -> None:
    group = holding(ranks(world))
    assert load_all(group, PROMPT) == [END] * world
    check_paged(group, 0, END)
    assert [rank.references() for rank in group] == [[1] * len(rank.held) for rank in group]


@pytest.mark.parametrize("begin", range(0, END + 1, TOKENS))
def test_a_load_may_begin_anywhere_in_the_prompt(group: list[Rank], begin: int) -> None:
    assert load_all(group, PROMPT, begin) == [END] * 3
    check_paged(group, begin, END)


def test_the_ranks_do_the_same_in_the_same_order(group: list[Rank]) -> None:
    del group[1].held[key(group[1], 4)]
    load_all(group, PROMPT, TOKENS)
    for rank in group:
        assert rank.transport.log == ["exchange", 1, 2, 0]


def test_a_partial_last_chunk_is_no_part_of_the_load(group: list[Rank]) -> None:
    assert load_all(group, [*PROMPT, 1]) == [END] * 3
    check_paged(group, 0, END)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_missing_chunk_ends_the_load_there(group: list[Rank], chunk: int) -> None:
    owner = group[chunk % 3]
    del owner.held[key(owner, chunk)]
    assert load_all(group, PROMPT) == [chunk * TOKENS] * 3
    check_paged(group, 0, chunk * TOKENS)


def void(_: object) -> None:
    """Forget a value."""


def raising(error: Exception) -> Callable[..., None]:
    def fault(*_: object) -> None:
        raise error

    return fault


def unhealthy(rank: Rank) -> None:
    rank.healthy = False


def failing_read(rank: Rank) -> None:
    rank.read_fault = raising(OSError("no route to the server"))


def failing_hash(rank: Rank) -> None:
    rank.store._engine.token_database = None


def full_device(rank: Rank) -> None:
    rank.store.prepare_copy = raising(RuntimeError("out of memory"))


@pytest.mark.parametrize("fault", [unhealthy, failing_read, failing_hash, full_device])
@pytest.mark.parametrize("index", range(3))
def test_a_rank_that_cannot_read_still_takes_part(
    group: list[Rank], fault: Callable[[Rank], None], index: int
) -> None:
    database = group[index].store._engine.token_database
    prepare = group[index].store.prepare_copy
    fault(group[index])
    assert load_all(group, PROMPT) == [0] * 3
    check_paged(group, 0, 0)
    group[index].healthy, group[index].read_fault = True, lambda: None
    group[index].store._engine.token_database = database
    group[index].store.prepare_copy = prepare
    assert load_all(group, PROMPT) == [END] * 3, "the next load works"
    check_paged(group, 0, END)


def test_a_read_that_takes_too_long_is_left_behind(group: list[Rank]) -> None:
    stuck, rank = threading.Event(), group[1]
    rank.read_fault = lambda: void(stuck.wait(20))
    rank.store._reader._timeout_s = 0.2
    assert load_all(group, PROMPT) == [0] * 3
    assert load_all(group, PROMPT) == [0] * 3, "it does not read while the first read is stuck"
    stuck.set()
    wait_until(rank.store._reader._last.done, 5, "the read did not end")
    wait_until(lambda: rank.references() == [1] * len(rank.held), 5, "what it read is not released")
    assert load_all(group, PROMPT) == [END] * 3


def test_a_chunk_of_another_layout_is_a_miss(group: list[Rank]) -> None:
    owner = group[1]
    owner.held[key(owner, 4)] = owner.take(1, 2, TOKENS, 4)
    assert load_all(group, PROMPT) == [4 * TOKENS] * 3
    check_paged(group, 0, 4 * TOKENS)
    assert owner.references() == [1] * len(owner.held)


def test_ranks_that_mean_different_chunks_load_nothing(
    group: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(pcp_load.logger, "error", lambda text, *of: said.append(text % of))
    other = [*PROMPT[:-1], 0]

    def load(rank: Rank) -> int:
        tokens = other if rank is group[1] else PROMPT
        return int(rank.store.load(tokens, None, req_id="request").sum())

    group[1].hold(other)
    assert on_all(group, load) == [0] * 3
    check_paged(group, 0, 0)
    assert len(said) == 3
    for line in said:
        assert "ranks 0, 2" in line and "rank 1" in line, line


def test_a_copy_that_fails_ends_in_an_error_after_all_broadcasts(group: list[Rank]) -> None:
    group[1].copy_fault = raising(RuntimeError("device fault"))
    ends = load_all(group, PROMPT)
    assert ends[0] == ends[2] == END
    assert isinstance(ends[1], RuntimeError) and "device fault" in str(ends[1])
    assert {len(rank.transport.log) for rank in group} == {1 + CHUNKS}
    assert group[1].references() == [1] * len(group[1].held)


def test_a_failed_collective_is_an_error_now_and_later(group: list[Rank]) -> None:
    group[0].transport.network.barrier.abort()
    outcomes = load_all(group, PROMPT)
    assert all(isinstance(each, ShardTransportError) for each in outcomes), outcomes
    group[0].transport.network.barrier.reset()
    outcomes = load_all(group, PROMPT)
    assert all(isinstance(each, ShardTransportError) for each in outcomes), outcomes
    assert [rank.references() for rank in group] == [[1] * len(rank.held) for rank in group]


def test_nothing_is_allocated_once_the_ranks_have_agreed(
    group: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = [[chunk.raw_data.data_ptr() for chunk in r.store.staging.memory_objs] for r in group]
    used: list[set[int]] = [set() for _ in group]
    for index, rank in enumerate(group):
        start = rank.transport.start_broadcast

        def spy(tensor: Any, src: int, index: int = index, start: Any = start) -> Any:
            used[index].add(tensor.data_ptr())
            return start(tensor, src)

        monkeypatch.setattr(rank.transport, "start_broadcast", spy)
    load_all(group, PROMPT)
    assert used == [set(each) for each in buffers]


def key(rank: Rank, chunk: int) -> Any:
    return list(rank.database.process_tokens(PROMPT))[chunk][2]
