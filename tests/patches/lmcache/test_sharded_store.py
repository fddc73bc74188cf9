"""The sharded store on real processes: each rank stores and reads its own chunks on its own Valkey,
and all of them load the whole prompt.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.template import Template
from headrace.suites.valkey_server import ValkeyServer
from tests.patches.lmcache.rank_pool import CHUNKS, LABELS, TAIL, assert_loaded, found, replica

# Why each test fails on the pinned release; the runner matches these with its messages. It also
# loses completions: there, rank 0 may never get as far as what the test is about.
STOCK_REASONS = {
    "test_each_rank_stores_its_own_chunks": r"rank 0 stored all 11 chunks",
    "test_all_ranks_load_from_l2": r"rank 1 loaded 0 of 176 tokens|did not return from",
    "test_all_ranks_load_from_l1": r"rank 1 loaded 0 of 176 tokens|did not return from",
    "test_all_ranks_load_half_and_half": r"rank 1 loaded 0 of 176 tokens|did not return from",
    "test_a_load_that_begins_in_the_middle": r"rank 1 loaded 0 of \d+ tokens|did not return from",
    "test_a_prompt_with_fewer_chunks_than_ranks": r"rank 1 loaded 0 of 16|did not return from",
    "test_two_requests_share_a_prefix": r"rank 1 loaded 0 of \d+ tokens|did not return from",
    "test_names_do_not_depend_on_the_number_of_ranks": r"rank 1 stored \d+ of its own \d+ chunks",
    "test_two_replicas_in_one_world": r"rank 1 loaded 0 of 176 tokens|did not return from",
    "test_eight_ranks": r"rank 0 stored all 20 chunks",
}


@pytest.fixture
def ranks(three: tuple[RankPool, Shards]) -> tuple[RankPool, Shards, Settings]:
    """Three ranks with new engines, on empty servers."""
    pool, shards = three
    shards.flush()
    settings = Settings(url=shards.url)
    pool.restart(settings)
    shards.reset_counts()
    return pool, shards, settings


def copy(origin: ValkeyServer, to: ValkeyServer, name: str) -> None:
    to.client().set(name, cast(bytes, origin.client().get(name)))


def owned(chunks: int, rank: int, world: int) -> int:
    return len(range(rank, chunks, world))


def assert_stored(pool: RankPool, shards: Shards, settings: Settings, labels: list[int]) -> None:
    """Check on the servers that each rank stored the chunks that it owns and no other."""
    names = pool.ask(0, "names", labels=labels)["names"]
    world = len(shards.servers)
    for rank, (held, size) in enumerate(zip(shards.names(), shards.bytes_held(), strict=True)):
        assert not (rank == 0 and len(held) == len(names)), f"rank 0 stored all {len(names)} chunks"
        wanted = set(names[rank::world])
        assert held == wanted, (
            f"rank {rank} stored {len(held & wanted)} of its own {len(wanted)} chunks and "
            f"{len(held - wanted)} others"
        )
        assert size == len(wanted) * settings.shape.chunk_bytes


def test_each_rank_stores_its_own_chunks(ranks: tuple[RankPool, Shards, Settings]) -> None:
    pool, shards, settings = ranks
    pool.each("store", labels=LABELS, tail=TAIL)
    assert_stored(pool, shards, settings, LABELS)
    most = -(-CHUNKS // pool.world)
    assert max(shards.calls("set")) == most
    # What the most loaded server received in all, commands included.
    assert max(shards.received()) < (most + 0.5) * settings.shape.chunk_bytes
    assert [held["bytes"] for held in pool.each("held")] == [0] * pool.world


def test_all_ranks_load_from_l2(ranks: tuple[RankPool, Shards, Settings]) -> None:
    pool, shards, settings = ranks
    pool.each("store", labels=LABELS, tail=TAIL)
    pool.restart(settings)
    shards.reset_counts()
    assert found(pool, LABELS, tail=TAIL) == CHUNKS * settings.chunk_size
    assert_loaded(pool.each("load", labels=LABELS, tail=TAIL), CHUNKS, settings)
    pool.each("release")
    assert shards.calls("get") == [owned(CHUNKS, rank, pool.world) for rank in range(pool.world)]
    assert [held["bytes"] for held in pool.each("held")] == [0] * pool.world


def test_all_ranks_load_from_l1(ranks: tuple[RankPool, Shards, Settings]) -> None:
    pool, shards, settings = ranks
    settings = replace(settings, local_cpu=True)
    pool.restart(settings)
    pool.each("store", labels=LABELS, tail=TAIL)
    shards.flush()
    before = pool.each("held")
    assert found(pool, LABELS, tail=TAIL) == CHUNKS * settings.chunk_size
    assert_loaded(pool.each("load", labels=LABELS, tail=TAIL), CHUNKS, settings)
    pool.each("release")
    assert pool.each("held") == before
    kept = [held["chunks"] for held in before]
    assert kept == [owned(CHUNKS, rank, pool.world) for rank in range(pool.world)]


def test_all_ranks_load_half_and_half(ranks: tuple[RankPool, Shards, Settings]) -> None:
    pool, shards, settings = ranks
    pool.each("store", labels=LABELS, tail=TAIL)
    settings = replace(settings, local_cpu=True)
    pool.restart(settings)
    names = pool.ask(0, "names", labels=LABELS)["names"]
    pool.each("store", labels=LABELS[:5])
    assert shards.delete(names[:5]) == 5
    assert found(pool, LABELS, tail=TAIL) == CHUNKS * settings.chunk_size
    assert_loaded(pool.each("load", labels=LABELS, tail=TAIL), CHUNKS, settings)
    pool.each("release")


@pytest.mark.parametrize(("begin", "end"), [(1, 11), (4, 9), (2, 3), (10, 11)])
def test_a_load_that_begins_in_the_middle(
    ranks: tuple[RankPool, Shards, Settings], begin: int, end: int
) -> None:
    pool, shards, settings = ranks
    pool.each("store", labels=LABELS, tail=TAIL)
    pool.each("poison")
    assert found(pool, LABELS, tail=TAIL) == CHUNKS * settings.chunk_size
    # The owner of a chunk is told by its place in the prompt, not in the call.
    shards.reset_counts()
    loaded = pool.each("load", labels=LABELS, tail=TAIL, begin=begin, end=end)
    assert_loaded(loaded, end - begin, settings)
    pool.each("release")
    world = pool.world
    assert shards.calls("get") == [
        sum(chunk % world == rank for chunk in range(begin, end)) for rank in range(world)
    ]


def test_a_prompt_with_fewer_chunks_than_ranks(
    ranks: tuple[RankPool, Shards, Settings],
) -> None:
    pool, shards, settings = ranks
    pool.each("store", labels=[1], tail=TAIL)
    pool.each("poison")
    assert found(pool, [1], tail=TAIL) == settings.chunk_size
    assert_loaded(pool.each("load", labels=[1], tail=TAIL), 1, settings)
    pool.each("release")
    assert [len(names) for names in shards.names()] == [1, 0, 0]
    # No whole chunk at all: nothing to agree on.
    assert found(pool, [], tail=TAIL) == 0


def test_two_requests_share_a_prefix(ranks: tuple[RankPool, Shards, Settings]) -> None:
    pool, shards, settings = ranks
    one, other = LABELS, [*LABELS[:5], 77, 78]
    pool.each("store", labels=one)
    pool.each("store", labels=other)
    pool.each("poison")
    distinct = len(one) + 2
    assert sum(map(len, shards.names())) == distinct
    assert found(pool, one, request="one") == len(one) * settings.chunk_size
    assert found(pool, other, request="other") == len(other) * settings.chunk_size
    assert_loaded(pool.each("load", labels=other, request="other"), len(other), settings)
    pool.each("release", request="other")
    assert_loaded(pool.each("load", labels=one, request="one"), len(one), settings)
    pool.each("release", request="one")
    assert [held["bytes"] for held in pool.each("held")] == [0] * pool.world


def test_names_do_not_depend_on_the_number_of_ranks(
    source: Template, ranks: tuple[RankPool, Shards, Settings], tmp_path: Path
) -> None:
    pool, shards, settings = ranks
    pool.each("store", labels=LABELS)
    names = pool.ask(0, "names", labels=LABELS)["names"]
    stored = shards.names()
    with replica(source, tmp_path, 2) as (two, two_shards):
        two_settings = replace(settings, url=two_shards.url)
        two.open(two_settings)
        two.each("store", labels=LABELS)
        for rank in range(2):
            wanted = set(names[rank::2])
            held = two_shards.names()[rank]
            assert rank == 0 or held == wanted, (
                f"rank {rank} stored {len(held & wanted)} of its own {len(wanted)} chunks"
            )
        assert set.union(*two_shards.names()) == set.union(*stored) == set(names)
        # Two ranks read what three have stored, once each chunk lies where its owner looks.
        for server in two_shards.servers:
            server.client().flushall()
        for origin, held in zip(shards.servers, stored, strict=True):
            for name in held:
                owner = names.index(name) % 2
                copy(origin, two_shards.servers[owner], name)
        assert found(two, LABELS) == CHUNKS * settings.chunk_size
        assert_loaded(two.each("load", labels=LABELS), CHUNKS, settings)
        # So does an engine that shards nothing, from a server that has all.
        for name in names[1::2]:
            copy(two_shards.servers[1], two_shards.servers[0], name)
        two.restart(replace(two_settings, sharded=False))
        assert two.ask(0, "lookup", labels=LABELS)["tokens"] == CHUNKS * settings.chunk_size


def test_two_replicas_in_one_world(source: Template, tmp_path: Path) -> None:
    # A broadcast names its source by the number in the world, not in the replica.
    with replica(source, tmp_path, 2, processes=4) as (pool, shards):
        settings = Settings(url=shards.url)
        pool.open(settings)
        pool.each("store", labels=LABELS, ranks=[0, 1])
        pool.each("poison")
        assert found(pool, LABELS) == CHUNKS * settings.chunk_size
        assert_loaded(pool.each("load", labels=LABELS), CHUNKS, settings)
        # One replica's load is none of the other's business.
        assert_loaded(pool.each("load", labels=LABELS, ranks=[2, 3]), CHUNKS, settings)


def test_eight_ranks(source: Template, tmp_path: Path) -> None:
    chunks, tail = 20, 100
    labels = list(range(1, chunks + 1))
    with replica(source, tmp_path, 8) as (pool, shards):
        settings = Settings(
            url=shards.url, chunk_size=256, hidden=576, cpu_bytes=256 << 20, blocking_seconds=10
        )
        size = settings.shape.chunk_bytes
        pool.open(settings)
        pool.each("store", labels=labels, tail=tail)
        assert_stored(pool, shards, settings, labels)
        assert max(shards.bytes_held()) <= -(-chunks // 8) * size

        pool.restart(settings)
        assert found(pool, labels, tail=tail) == chunks * 256
        assert_loaded(pool.each("load", labels=labels, tail=tail), chunks, settings)
        pool.each("release")

        # L1 alone, then the second half from L2.
        pool.restart(replace(settings, local_cpu=True))
        pool.each("store", labels=labels[:10])
        names = pool.ask(0, "names", labels=labels)["names"]
        shards.delete(names[:10])
        assert found(pool, labels[:10]) == 10 * 256
        assert_loaded(pool.each("load", labels=labels[:10]), 10, settings)
        pool.each("release")
        assert found(pool, labels, tail=tail) == chunks * 256
        assert_loaded(pool.each("load", labels=labels, tail=tail), chunks, settings)
        pool.each("release")


@pytest.mark.patched_only(reason="on the pinned release clear does not reach a server at all")
def test_clear_empties_every_shard(ranks: tuple[RankPool, Shards, Settings]) -> None:
    pool, shards, _ = ranks
    pool.each("store", labels=LABELS)
    assert all(shards.names())
    pool.each("clear")
    assert shards.names() == [set(), set(), set()]
    assert found(pool, LABELS) == 0
