"""A lookup lets go, once, of what it took, and of nothing that others took: on a whole engine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lmcache.v1.pin_monitor import PinMonitor

from tests.patches.lmcache.count_complaints import count_complaints
from tests.patches.lmcache.deadline import wait_until, within
from tests.patches.lmcache.lease_engine import PAGE, SECONDS, TOKENS, OneRank, one_rank
from tests.patches.lmcache.stand_in_vllm import worker_connector
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_a_second_request_still_hits": r"the first request left \[\(0, 0\)",
    "test_a_load_takes_nothing_from_the_lookup": r"the load left \[\(1, 0\)",
    "test_a_request_that_ends_leaves_the_other_its_pins": r"the other request holds \[\(\d, 0\)",
    "test_a_lookup_asked_again_loses_no_pin": r"the end of the request left \[\(\d, [12]\)",
    "test_an_ended_request_that_never_loaded_leaves_nothing": r"the requests left \[\([12], [12]\)",
    "test_a_full_pool_of_skipped_lookups_takes_new_chunks": r"of the new prompt are in the pool",
    "test_a_partial_load_leaves_nothing": r"the request left \[\(\d, \d\)",
    "test_pins_of_a_removed_chunk_do_not_pass_to_the_next": r"bytes of the pool are taken",
    "test_pins_taken_by_force_are_not_released_again": r"the other request holds \[\(1, 0\)",
    "test_a_prefetch_that_ends_after_its_request_leaves_nothing": r"the request left \[\(2, 1\)",
    "test_a_request_that_ends_before_its_prefetch_begins_leaves_nothing": r"left \[\(2, 1\)",
    "test_a_failed_prefetch_leaves_nothing": r"the request left \[\(1, 1\)",
    "test_a_partly_present_layerwise_chunk_is_not_left_pinned": r"the request left \[\(1, 1\)",
    "test_a_chunk_on_disk_is_not_left_pinned": r"pins on disk: \[1",
    "test_chunks_of_two_tiers_are_released_once": r"released once too often",
}

PROMPT = range(4 * TOKENS)

each_mode = pytest.mark.parametrize("rank", [False, True], ids=["sync", "async"], indirect=True)
only_sync = pytest.mark.parametrize("rank", [False], ids=["sync"], indirect=True)
only_async = pytest.mark.parametrize("rank", [True], ids=["async"], indirect=True)


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    with count_complaints() as lines:
        yield lines


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Iterator[OneRank]:
    with one_rank(asynchronous=request.param) as built:
        yield built


@only_async
def test_a_second_request_still_hits(rank: OneRank) -> None:
    rank.store(PROMPT)
    for request in ("first", "second"):
        assert rank.lookup(request, PROMPT) == len(PROMPT)
        assert rank.load(request, PROMPT) == len(PROMPT)
        rank.step_ends(request)
        assert rank.counts() == [(1, 0)] * 4, f"the {request} request left {rank.counts()}"
    assert rank.taken() == 4 * PAGE
    assert rank.events() == 0


@each_mode
def test_a_load_takes_nothing_from_the_lookup(rank: OneRank) -> None:
    rank.store(PROMPT)
    rank.lookup("request", PROMPT)
    before = rank.counts()
    rank.load("request", PROMPT)
    assert rank.counts() == before, f"the load left {rank.counts()} of {before}"


@each_mode
def test_a_request_that_ends_leaves_the_other_its_pins(
    rank: OneRank, complaints: list[str]
) -> None:
    rank.store(PROMPT)
    rank.lookup("other", PROMPT)
    held = rank.counts()
    rank.lookup("ending", PROMPT)
    rank.load("ending", PROMPT)
    # One that is prefilled in several steps is let go after each of them.
    for _ in range(3):
        rank.step_ends("ending")
    assert rank.counts() == held, f"the other request holds {rank.counts()} instead of {held}"
    assert rank.load("other", PROMPT) == len(PROMPT)
    rank.step_ends("other")
    assert rank.counts() == [(1, 0)] * 4
    assert complaints == []


@each_mode
def test_a_lookup_asked_again_loses_no_pin(rank: OneRank) -> None:
    """As after a preemption, or when the first answer came too late."""
    rank.store(PROMPT)
    for _ in range(2):
        assert rank.lookup("request", PROMPT) == len(PROMPT)
    rank.step_ends("request")
    assert rank.counts() == [(1, 0)] * 4, f"the end of the request left {rank.counts()}"
    assert rank.events() == 0


@each_mode
def test_an_ended_request_that_never_loaded_leaves_nothing(rank: OneRank) -> None:
    """Aborted while it waited: no step ever names it."""
    rank.store(PROMPT)
    rank.lookup("aborted", PROMPT)
    worker_connector(rank.engine).get_finished({"aborted", "unknown"})
    assert rank.counts() == [(1, 0)] * 4, f"the requests left {rank.counts()}"
    assert rank.events() == 0


@each_mode
def test_a_full_pool_of_skipped_lookups_takes_new_chunks(rank: OneRank) -> None:
    """The paged cache had these prompts: they are looked up and never loaded."""
    connector = worker_connector(rank.engine)
    for prompt in range(16):
        tokens = range(1000 * prompt, 1000 * prompt + len(PROMPT))
        rank.store(tokens)
        rank.lookup(f"request-{prompt}", tokens)
        connector.get_finished({f"request-{prompt}"})
    new = range(20_000, 20_000 + len(PROMPT))
    within(SECONDS, "store", lambda: rank.store(new))
    found = rank.lookup("new", new)
    assert found == len(new), f"{found} of {len(new)} tokens of the new prompt are in the pool"


@each_mode
@pytest.mark.parametrize(
    ("skip", "end"), [(2 * TOKENS, 4 * TOKENS), (0, 2 * TOKENS), (TOKENS, 3 * TOKENS)]
)
def test_a_partial_load_leaves_nothing(rank: OneRank, skip: int, end: int) -> None:
    """What is skipped and what lies past the end is let go like what is loaded."""
    rank.store(PROMPT)
    rank.lookup("waiting", PROMPT)
    held = rank.counts()
    rank.lookup("request", PROMPT)
    assert rank.load("request", PROMPT[:end], skip) == end - skip
    rank.step_ends("request")
    assert rank.counts() == held, f"the request left {rank.counts()} instead of {held}"


@only_sync
def test_pins_of_a_removed_chunk_do_not_pass_to_the_next(rank: OneRank) -> None:
    rank.store(PROMPT)
    rank.lookup("request", PROMPT)
    rank.engine.clear(list(PROMPT))
    rank.store(PROMPT)
    rank.lookup("other", PROMPT)
    rank.step_ends("request")
    assert rank.taken() == 4 * PAGE, f"{rank.taken()} bytes of the pool are taken"
    assert rank.counts() == [(1, 1)] * 4


@only_sync
def test_pins_taken_by_force_are_not_released_again(rank: OneRank) -> None:
    rank.store(PROMPT)
    rank.lookup("slow", PROMPT)
    monitor = PinMonitor.GetOrCreate()
    for obj in list(rank.hot.values()):
        monitor._force_unpin_timeout_object(obj, 301.0)
    assert rank.counts() == [(1, 0)] * 4
    rank.lookup("other", PROMPT)
    rank.step_ends("slow")
    assert rank.counts() == [(1, 1)] * 4, f"the other request holds {rank.counts()}"


@only_async
def test_a_prefetch_that_ends_after_its_request_leaves_nothing(
    rank: OneRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.store(PROMPT)
    gate, started = threading.Event(), threading.Event()
    cpu = rank.engine.storage_manager.storage_backends["LocalCPUBackend"]
    get = cpu.batched_get_non_blocking

    async def late(*arguments: Any) -> Any:
        started.set()
        await asyncio.to_thread(gate.wait, SECONDS)
        return await get(*arguments)

    monkeypatch.setattr(cpu, "batched_get_non_blocking", late)
    rank.ask("request", PROMPT)
    assert started.wait(SECONDS)
    rank.step_ends("request")
    gate.set()
    rank.scheduler.answer("request")
    rank.settle()
    assert rank.counts() == [(1, 0)] * 4, f"the request left {rank.counts()}"
    assert rank.events() == 0


@only_async
def test_a_request_that_ends_before_its_prefetch_begins_leaves_nothing(rank: OneRank) -> None:
    rank.store(PROMPT)
    gate = threading.Event()
    rank.engine.storage_manager.loop.call_soon_threadsafe(gate.wait, SECONDS)
    rank.ask("request", PROMPT)
    rank.step_ends("request")
    gate.set()
    rank.scheduler.answer("request")
    rank.settle()
    assert rank.counts() == [(1, 0)] * 4, f"the request left {rank.counts()}"
    assert rank.events() == 0


@only_async
def test_a_failed_prefetch_leaves_nothing(rank: OneRank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.store(PROMPT)
    cpu = rank.engine.storage_manager.storage_backends["LocalCPUBackend"]
    failed = threading.Event()

    async def fail(*_: Any) -> Any:
        failed.set()
        raise RuntimeError("planted")

    monkeypatch.setattr(cpu, "batched_get_non_blocking", fail)
    rank.ask("request", PROMPT)
    assert failed.wait(SECONDS)
    rank.settle()
    rank.step_ends("request")
    assert rank.counts() == [(1, 0)] * 4, f"the request left {rank.counts()}"
    assert rank.events() == 0


@only_sync
def test_a_partly_present_layerwise_chunk_is_not_left_pinned(rank: OneRank) -> None:
    engine = rank.engine
    key = next(iter(engine.token_database.process_tokens(tokens=list(range(TOKENS)))))[2]
    layers = key.split_layers(2)
    shapes, dtypes = engine.metadata.get_shapes(), engine.metadata.get_dtypes()
    obj = engine.storage_manager.allocate(shapes, dtypes, fmt=engine.fmt)
    engine.storage_manager.batched_put(layers[:1], [obj])
    engine.use_layerwise, engine.num_layers = True, 2
    assert engine.lookup(list(range(TOKENS)), lookup_id="request", pin=True) == 0
    rank.step_ends("request")
    assert rank.counts() == [(1, 0)], f"the request left {rank.counts()}"


def test_a_chunk_on_disk_is_not_left_pinned(tmp_path: Path) -> None:
    with one_rank(asynchronous=True, local_disk=str(tmp_path), max_local_disk_size=0.01) as rank:
        rank.store(PROMPT)
        disk = rank.engine.storage_manager.storage_backends["LocalDiskBackend"]
        wait_until(lambda: len(disk.dict) == 4, SECONDS, "the chunks did not reach the disk")
        rank.engine.clear(locations=["LocalCPUBackend"])
        assert rank.taken() == 0
        assert rank.lookup("request", PROMPT) == len(PROMPT)
        assert rank.load("request", PROMPT) == len(PROMPT)
        rank.step_ends("request")
        pins = [meta.pin_count for meta in disk.dict.values()]
        assert pins == [0] * 4, f"pins on disk: {pins}"
        assert rank.taken() == 0


@pytest.fixture
def two_tiers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OneRank]:
    """An engine that has two chunks of PROMPT in its pool and all four in its second tier.

    Synchronous lookups get files as their second tier: on the pinned release those to a RESP
    server lose completions, which is another fault than the one at hand.
    """
    with contextlib.ExitStack() as stack:
        if request.param:
            server = stack.enter_context(ValkeyServer())
            url = f"resp://{server.host}:{server.port}"
            keys: Callable[[], Any] = server.client().keys
        else:
            url = f"fs://unused:0{tmp_path}"
            keys = functools.partial(tmp_path.glob, "*.data")
        rank = stack.enter_context(
            one_rank(
                asynchronous=request.param,
                remote_url=url,
                remote_serde="naive",
                extra_config={"save_chunk_meta": False, "resp_num_threads": 2},
            )
        )
        rank.store(PROMPT)
        wait_until(lambda: len(list(keys())) == 4, SECONDS, "the chunks did not arrive")
        for key in list(rank.hot)[2:]:
            rank.engine.storage_manager.remove(key, ["LocalCPUBackend"])
        yield rank


@pytest.mark.parametrize("two_tiers", [False, True], ids=["sync", "async"], indirect=True)
def test_chunks_of_two_tiers_are_released_once(two_tiers: OneRank, complaints: list[str]) -> None:
    rank = two_tiers
    rank.lookup("aborted", PROMPT)
    assert rank.lookup("request", PROMPT) == len(PROMPT)
    assert rank.load("request", PROMPT) == len(PROMPT)
    rank.step_ends("request")
    rank.step_ends("aborted")
    assert complaints == [], f"released once too often: {complaints}"
    assert set(rank.counts()) == {(1, 0)}
    assert rank.taken() == len(rank.hot) * PAGE
