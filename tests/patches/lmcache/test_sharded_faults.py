"""No hang, ever: whatever happens to one rank, at whatever moment, all ranks return in time, report
the same prefix, hold the right bytes of it, and the next request works.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.suites.ranks.failures import RankDiedError, RanksHungError
from headrace.suites.ranks.main import WITHOUT_HASH
from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.template import Template
from tests.patches.lmcache.cell_run import (
    EVICTING,
    TABLE,
    Replica,
    cell_settings,
    check,
    some_labels,
)
from tests.patches.lmcache.rank_pool import assert_loaded, found, replica, template
from tests.patches.lmcache.sharded_cells import CELLS, Cell

# Three cells of the table run on the release too; its other results are in stock_table.json.
# A completion that the release loses may end a cell before its fault does.
STOCK_REASONS = {
    "test_a_chunk_that_goes_missing": r"all ranks loaded 0 of 7 chunks|did not return from",
    "test_a_leader_that_is_unhealthy": r"ranks 1, 2 of 3 did not return from load|did not return",
    "test_a_value_of_another_size": r"has wrong bytes: chunks \[3\]|did not return from",
}


@pytest.fixture(scope="module")
def three(source: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with replica(source, tmp_path_factory.mktemp("three"), 3, *EVICTING) as (pool, shards):
        settings = cell_settings(shards)
        pool.open(settings)
        yield pool, shards, settings


@pytest.fixture(scope="module")
def eight(source: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with replica(source, tmp_path_factory.mktemp("eight"), 8, *EVICTING) as (pool, shards):
        settings = replace(cell_settings(shards), cpu_bytes=64 << 20)
        pool.open(settings)
        yield pool, shards, settings


@pytest.mark.patched_only
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_cell(three: Replica, cell: Cell) -> None:
    check(three, cell)


@pytest.mark.patched_only
@pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if cell.fault == "chunk missing"], ids=lambda cell: cell.moment
)
def test_a_missing_chunk_on_eight_ranks(eight: Replica, cell: Cell) -> None:
    check(eight, cell)


@pytest.mark.patched_only
def test_the_stock_table_is_whole() -> None:
    table = json.loads(TABLE.read_text())
    recorded = [(row["fault"], row["moment"]) for row in table["cells"]]
    assert recorded == [(cell.fault, cell.moment) for cell in CELLS], "run: make stock-table"


def cell_of(fault: str, moment: str) -> Cell:
    return next(cell for cell in CELLS if (cell.fault, cell.moment) == (fault, moment))


def test_a_chunk_that_goes_missing(three: Replica) -> None:
    check(three, cell_of("chunk missing", "between lookup and load"), rank=0)


def test_a_leader_that_is_unhealthy(three: Replica) -> None:
    check(three, cell_of("rank unhealthy", "between lookup and load"), rank=0)


def test_a_value_of_another_size(three: Replica) -> None:
    check(three, cell_of("wrong-size value", "between lookup and load"), rank=0)


@pytest.mark.patched_only
def test_a_read_that_never_ends(three: Replica) -> None:
    pool, _, settings = three
    labels = some_labels(7)
    pool.each("store", labels=labels)
    pool.each("poison")
    pool.ask(1, "plant", moment="in the local read", fault="read hangs")
    assert_loaded(pool.each("load", labels=labels), 0, settings, of=7)
    # The next load does not wait for it either.
    assert_loaded(pool.each("load", labels=labels, seconds=1.5), 0, settings, of=7)
    pool.ask(1, "heal")
    assert_loaded(pool.each("load", labels=labels), 7, settings)
    assert [held["bytes"] for held in pool.each("held")] == [0] * pool.world


@pytest.mark.patched_only
def test_an_unusable_value_is_absent_afterwards(three: Replica) -> None:
    pool, shards, settings = three
    labels = some_labels(7)
    pool.each("store", labels=labels)
    pool.each("poison")
    name = pool.ask(0, "names", labels=labels)["names"][4]
    shards.servers[1].client().set(name, b"a value of another layout")
    assert_loaded(pool.each("load", labels=labels), 4, settings, of=7)
    # Not a hit that fails for ever: the next lookup knows, and the next store puts it right.
    assert found(pool, labels) == 4 * settings.chunk_size
    assert_loaded(pool.each("load", labels=labels), 4, settings, of=7)
    pool.each("store", labels=labels)
    pool.each("poison")
    assert found(pool, labels) == 7 * settings.chunk_size
    assert_loaded(pool.each("load", labels=labels), 7, settings)
    pool.each("release")


@pytest.mark.patched_only
def test_an_aborted_request_is_looked_up_again(three: Replica) -> None:
    pool, _, settings = three
    labels = some_labels(7)
    pool.each("store", labels=labels)
    pool.each("poison")
    for request in ("aborted", "aborted", "again"):
        assert found(pool, labels, request=request) == 7 * settings.chunk_size
        pool.each("release", request=request)
        pool.each("release", request=request)
    assert found(pool, labels, request="loaded") == 7 * settings.chunk_size
    assert_loaded(pool.each("load", labels=labels, request="loaded"), 7, settings)
    pool.each("release", request="loaded")
    assert [held["bytes"] for held in pool.each("held")] == [0] * pool.world


@pytest.mark.patched_only
def test_the_pool_reports_a_rank_that_waits_for_the_others(three: Replica) -> None:
    pool, _, settings = three
    with pytest.raises(RanksHungError, match="rank 0 of 3 did not return from load") as hung:
        pool.each("load", labels=some_labels(3), ranks=[0], seconds=1.0)
    assert hung.value.silent == (0,)
    assert "in exchange" in pool.log(0), "the stacks do not show where it waits"
    pool.restart(settings)


@pytest.mark.patched_only
def test_the_pool_reports_a_rank_that_dies(three: Replica) -> None:
    pool, _, settings = three
    pool.signal(2, signal.SIGKILL)
    with pytest.raises(RankDiedError, match="rank 2 ended in names"):
        pool.each("names", labels=some_labels(3))
    pool.restart(settings)


def refused(pool: RankPool, settings: Sequence[Settings]) -> str:
    """Open engines of which none may start, and return the one message of all ranks."""
    answers = pool.open(settings, may_raise=True)
    raised = [answer.get("raised", "started") for answer in answers]
    assert "started" not in raised, f"a rank started: {raised}"
    assert len(set(raised)) == 1, f"the ranks do not say the same: {raised}"
    return str(raised[0])


@pytest.fixture
def unopened(three: Replica) -> Iterator[Replica]:
    """Ranks without engines; those after them get theirs again."""
    pool, shards, settings = three
    pool.start()
    yield pool, shards, settings
    pool.restart(settings)


@pytest.mark.patched_only
def test_a_rank_that_cannot_cache_keeps_all_from_starting(unopened: Replica) -> None:
    pool, _, settings = unopened
    pool.ask(1, "break_start")
    message = refused(pool, [settings] * 3)
    assert "rank 1" in message
    assert "no storage on this rank" in message


@pytest.mark.patched_only
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"chunk_size": 32}, "chunk_size"),
        ({"layers": 3}, "layout"),
        ({"cpu_bytes": 64 << 20}, "max_local_cpu_size"),
        ({"local_cpu": True}, "local_cpu"),
        ({"blocking_seconds": 2}, "blocking_timeout_secs"),
        ({"config": {"cache_policy": "FIFO"}}, "cache_policy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_differ_keep_all_from_starting(
    unopened: Replica, change: dict[str, Any], named: str
) -> None:
    pool, _, settings = unopened
    message = refused(pool, [settings, settings, replace(settings, **change)])
    assert named in message
    assert "rank 2" in message


@pytest.mark.patched_only
def test_a_rank_without_the_sharded_store_keeps_the_others_from_starting(
    unopened: Replica,
) -> None:
    pool, _, settings = unopened
    alone = replace(settings, sharded=False, url=settings.url.replace("{rank}", "0"))
    answers = pool.open([settings, alone, settings], may_raise=True)
    assert "raised" in answers[0]
    assert "raised" in answers[2]
    # It shards nothing: it has nobody to wait for.
    assert not answers[1].get("sharded")


@pytest.mark.patched_only
def test_processes_without_a_common_hash_seed(tmp_path: Path) -> None:
    sources = [
        template(tmp_path / f"import-{seed}.log", {"PYTHONHASHSEED": seed, WITHOUT_HASH: "1"})
        for seed in ("1", "2")
    ]
    with ExitStack() as stack:
        for each in sources:
            stack.enter_context(each)
        pool, shards = stack.enter_context(replica(sources, tmp_path, 2))
        settings = Settings(url=shards.url)
        pool.open(settings)
        labels = some_labels(5)
        one, other = pool.each("names", labels=labels)
        assert one == other, "the ranks have different names for one prompt"
        pool.each("store", labels=labels)
        pool.each("poison")
        assert found(pool, labels) == 5 * settings.chunk_size
        assert_loaded(pool.each("load", labels=labels), 5, settings)
