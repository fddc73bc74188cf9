"""The prefix of the union through a real engine and its storage manager: what its lookups answer,
synchronous and asynchronous, and what the read of a load finds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.storage_manager import StorageManager

from tests.patches.lmcache.deadline import wait_until
from tests.patches.lmcache.prefix_patterns import MAX_CHUNKS, MAX_RANKS, Pattern, random_pattern
from tests.patches.lmcache.storage import Scheduler

# The release has no sharded store; test_sharded_prefix.py has the test that says so.
STOCK_REASONS: dict[str, str] = {}

SECONDS = 20.0
PATTERNS = 3_000
SIZE = 16
SHAPE = (1, 1, SIZE, 1, 8)


class Ranks:
    """One engine that is each rank in turn, with the chunks that a pattern leaves.

    A chunk's hash is its number.

    Attributes:
        strange: what a rank asked its back end for though it may not: chunks that it does not
            own, and nothing at all. A list, because an error there counts as a miss.
    """

    def __init__(self, engine: Any, scheduler: Scheduler) -> None:
        self.engine = engine
        self.scheduler = scheduler
        self.strange: list[str] = []
        self.manager = engine.storage_manager
        self.backend = self.manager.local_cpu_backend
        self._world, self._chunks, self._rank = 1, 0, 0
        self._numbers = iter(range(10**9))
        found = engine.token_database.process_tokens(
            hashes=list(range(MAX_CHUNKS)), offsets=[SIZE] * MAX_CHUNKS
        )
        self.keys = [key for _, _, key in found]
        self.chunks = [
            self.manager.allocate(torch.Size(SHAPE[:1] + SHAPE[2:3] + SHAPE[4:]), torch.bfloat16)
            for _ in self.keys
        ]
        self._contains = self.backend.batched_contains
        self._async_contains = self.backend.batched_async_contains
        self.backend.batched_contains = self._checked_contains
        self.backend.batched_async_contains = self._checked_async_contains

    def hold(self, pattern: Pattern) -> None:
        self._world, self._chunks = pattern.world, pattern.chunks
        left = [chunk for chunk in range(pattern.chunks) if chunk not in pattern.missing]
        self.backend.hot_cache = self.backend.cache_policy.init_mutable_mapping()
        self.backend.hot_cache.update((self.keys[chunk], self.chunks[chunk]) for chunk in left)
        # Those of the asynchronous lookups, which nobody ages.
        self.backend.keys_in_request = []

    def be(self, rank: int) -> None:
        from lmcache.v1.pcp_shard.ownership import Shard

        self._rank = rank
        self.engine.pcp_shard.shard = Shard(rank, self._world, SIZE)

    def lookups(self, pattern: Pattern) -> list[int]:
        """Return what each rank answers synchronously."""
        return [self._lookup(rank, pattern.chunks) for rank in range(pattern.world)]

    def prefetches(self, pattern: Pattern) -> list[int]:
        """Return what each rank answers asynchronously."""
        number = next(self._numbers)
        ids = [f"{number}/{rank}" for rank in range(pattern.world)]
        for rank, lookup_id in enumerate(ids):
            self.be(rank)
            self.engine.async_lookup_and_prefetch(
                lookup_id, pin=True, **self._asked(pattern.chunks)
            )
        answers = self.scheduler.answers
        wait_until(lambda: all(each in answers for each in ids), SECONDS, "not all ranks answered")
        for lookup_id in ids:
            self.engine.lookup_unpin(lookup_id)
        return [answers.pop(each) for each in ids]

    def reads(self, pattern: Pattern) -> list[int]:
        """Return where the part of each rank ends that a load of the pattern's call reads."""
        from lmcache.v1.pcp_shard.agreement import first_missing
        from lmcache.v1.pcp_shard.local_read import read_stored, release

        firsts = []
        begin, end = pattern.first * SIZE, pattern.last * SIZE
        for rank in range(pattern.world):
            self.be(rank)
            shard = self.engine.pcp_shard.shard
            owned = [(start, self.keys[start // SIZE]) for start in shard.owned_starts(begin, end)]
            found = read_stored(self.manager, owned)
            release(found.values())
            firsts.append(first_missing(shard, begin, end, found.__contains__))
        return firsts

    def _lookup(self, rank: int, chunks: int) -> int:
        self.be(rank)
        answer: int = self.engine.lookup(lookup_id="sync", pin=True, **self._asked(chunks))
        self.engine.lookup_unpin("sync")
        return answer

    def _asked(self, chunks: int) -> dict[str, list[int]]:
        return {"hashes": list(range(chunks)), "offsets": [SIZE] * chunks}

    def _checked_contains(self, keys: list[Any], pin: bool = False) -> int:
        self._check(self._rank, keys)
        found: int = self._contains(keys, pin)
        return found

    async def _checked_async_contains(
        self, lookup_id: str, keys: list[Any], pin: bool = False
    ) -> int:
        if not keys and self._chunks:
            self.strange.append(f"{lookup_id} owns nothing and asked for nothing")
        self._check(int(lookup_id.partition("/")[2]), keys)
        found: int = await self._async_contains(lookup_id, keys, pin)
        return found

    def _check(self, rank: int, keys: list[Any]) -> None:
        asked = [key.chunk_hash for key in keys]
        others = [chunk for chunk in asked if chunk % self._world != rank]
        if others:
            self.strange.append(f"rank {rank} of {self._world} asked for chunks {others}")


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=SIZE,
        local_cpu=True,
        max_local_cpu_size=MAX_RANKS * 2 * MAX_CHUNKS * 4096 / 2**30,
        save_unfull_chunk=False,
        enable_async_loading=True,
        pre_caching_hash_algorithm="sha256_cbor",
        py_enable_gc=True,
        extra_config={"pcp_shard_store": True},
    )
    metadata = LMCacheMetadata(
        model_name="model", world_size=MAX_RANKS, local_world_size=MAX_RANKS, worker_id=0,
        local_worker_id=0, kv_dtype=torch.bfloat16, kv_shape=SHAPE, use_mla=True,
        chunk_size=SIZE, role="worker",
    )  # fmt: skip
    engine = LMCacheEngineBuilder.get_or_create(
        "prefix", config, metadata, MockGPUConnector(SHAPE), lambda t, s: t, lambda o, s: o
    )
    # post_init would look for the other ranks, to load with them.
    scheduler = Scheduler()
    engine.storage_manager = manager = StorageManager(
        config, metadata, engine.event_manager,
        async_lookup_server=scheduler, lookup_leases=engine.lookup_leases,
    )  # fmt: skip
    try:
        yield Ranks(engine, scheduler)
    finally:
        manager.loop.call_soon_threadsafe(manager.loop.stop)
        manager.thread.join(5.0)


@pytest.mark.patched_only(reason="the release has no sharded store")
def test_lookups_and_loads_find_the_prefix_of_the_union(ranks: Ranks) -> None:
    from lmcache.v1.pcp_shard.agreement import agreed_prefix

    draw = random.Random(5545)
    for _ in range(PATTERNS):
        pattern = random_pattern(draw, [SIZE])
        ranks.hold(pattern)
        prefix = pattern.prefix(0, pattern.chunks)
        assert min(ranks.lookups(pattern)) == prefix, f"synchronous lookup of {pattern}"
        assert min(ranks.prefetches(pattern)) == prefix, f"asynchronous lookup of {pattern}"
        begin, end = pattern.first * SIZE, pattern.last * SIZE
        loaded = agreed_prefix(ranks.reads(pattern), begin, end)
        assert loaded == pattern.prefix(pattern.first, pattern.last), f"load of {pattern}"
        assert not ranks.strange, ranks.strange
    held = {(chunk.get_ref_count(), chunk.metadata.pin_count) for chunk in ranks.chunks}
    assert held == {(1, 0)}, "a lookup or a read did not give back what it took"
