"""Cache engines of one group follow ownership: what they store, report, clear and pin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lmcache.v1.cache_engine import LMCacheEngine
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.pcp_shard import registration
from lmcache.v1.token_database import ChunkedTokenDatabase

from tests.patches.lmcache.shard_ranks import (
    TOKENS,
    WIDTH,
    ThreadNetwork,
    ThreadTransport,
    on_all,
    shard_config,
    shard_metadata,
)

pytestmark = pytest.mark.patched_only(reason="stock has no sharded store")

STOCK_REASONS: dict[str, str] = {}

WORLD = 3
CHUNKS = 7
PROMPT = list(range(CHUNKS * TOKENS + 1))
LAYERS = 2
POD_MIB = 6


class PagedCache(MockGPUConnector):  # type: ignore[misc]
    """A paged cache whose slots are the tokens; layers of [tokens, WIDTH] bf16."""

    def batched_from_gpu(
        self, chunks: list[Any], starts: list[int], ends: list[int], **call: Any
    ) -> None:
        for chunk, start, end in zip(chunks, starts, ends, strict=True):
            for layer, kv in enumerate(call["kvcaches"]):
                chunk.tensor[0, layer].copy_(kv[start:end])

    def batched_to_gpu(
        self, chunks: list[Any], starts: list[int], ends: list[int], **call: Any
    ) -> None:
        for chunk, start, end in zip(chunks, starts, ends, strict=True):
            for layer, kv in enumerate(call["kvcaches"]):
                kv[start:end] = chunk.tensor[0, layer]


@dataclass
class Worker:
    """One rank's engine and its KV."""

    rank: int
    engine: LMCacheEngine
    kv: list[torch.Tensor]

    def store(self, begin: int = 0) -> None:
        mask = torch.ones(len(PROMPT), dtype=torch.bool)
        mask[:begin] = False
        self.engine.store(PROMPT, mask=mask, kvcaches=self.kv, req_id="request")

    def load(self) -> tuple[int, bool]:
        """Return how many tokens were loaded, and whether they are the stored ones."""
        paged = [torch.zeros_like(layer) for layer in self.kv]
        loaded = self.engine.retrieve(PROMPT, kvcaches=paged, req_id="request")
        wanted = [layer * loaded[:, None] for layer in self.kv]
        return int(loaded.sum()), all(map(torch.equal, paged, wanted))

    @property
    def hot(self) -> dict[Any, Any]:
        return dict(self.engine.storage_manager.local_cpu_backend.hot_cache)

    def chunks(self) -> list[int]:
        """Return the numbers of the chunks in this rank's pool."""
        return [number for number, key in enumerate(keys(self.engine)) if key in self.hot]


def keys(engine: LMCacheEngine) -> list[Any]:
    return [key for _, _, key in engine.token_database.process_tokens(PROMPT)]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Worker]]:
    """Three registered engines that keep their chunks in their own pools."""
    network = ThreadNetwork(WORLD)
    monkeypatch.setattr(
        registration,
        "connect",
        lambda config, metadata, device: ThreadTransport(network, metadata.worker_id),
    )
    generator = torch.Generator().manual_seed(1)
    kv = [
        torch.randn(len(PROMPT), WIDTH, generator=generator).to(torch.bfloat16)
        for _ in range(LAYERS)
    ]
    group = [Worker(rank, _engine(rank), kv) for rank in range(WORLD)]
    outcomes = on_all(group, lambda worker: worker.engine.post_init())
    assert outcomes == [None] * WORLD, outcomes
    yield group
    for worker in group:
        worker.engine.close()


def _engine(rank: int) -> LMCacheEngine:
    config = shard_config(local_cpu=True, max_local_cpu_size=POD_MIB / 1024, enable_kv_events=True)
    metadata = shard_metadata(rank, WORLD, kv_shape=(LAYERS, 1, TOKENS, 1, WIDTH))
    connector = PagedCache(metadata.kv_shape)
    return LMCacheEngine(
        config,
        metadata,
        ChunkedTokenDatabase(config, metadata),
        connector,
        lambda tensor, src: pytest.fail("the tensor parallel group is not used"),
        lambda thing, src: pytest.fail("the tensor parallel group is not used"),
    )


def each(group: list[Worker], call: Any) -> list[Any]:
    return on_all(group, call)


def test_each_rank_stores_its_own_chunks(workers: list[Worker]) -> None:
    each(workers, Worker.store)
    assert [worker.chunks() for worker in workers] == [[0, 3, 6], [1, 4], [2, 5]]


def test_ownership_counts_from_the_start_of_the_prompt(workers: list[Worker]) -> None:
    each(workers, lambda worker: worker.store(4 * TOKENS))
    assert [worker.chunks() for worker in workers] == [[6], [4], [5]]


def test_every_rank_loads_the_whole_prompt(workers: list[Worker]) -> None:
    each(workers, Worker.store)
    assert each(workers, Worker.load) == [(CHUNKS * TOKENS, True)] * WORLD
    counts = {chunk.get_ref_count() for worker in workers for chunk in worker.hot.values()}
    assert counts == {1}


def test_a_lookup_answers_for_the_ranks_own_chunks(workers: list[Worker]) -> None:
    def lookup(worker: Worker) -> int:
        found: int = worker.engine.lookup(tokens=PROMPT, lookup_id="request", pin=True)
        return found

    assert each(workers, lookup) == [0, TOKENS, 2 * TOKENS]
    each(workers, Worker.store)
    assert each(workers, lookup) == [CHUNKS * TOKENS] * WORLD
    assert all(chunk.is_pinned for worker in workers for chunk in worker.hot.values())
    each(workers, Worker.load)
    assert all(chunk.is_pinned for worker in workers for chunk in worker.hot.values())
    each(workers, lambda worker: worker.engine.lookup_unpin("request"))
    assert not any(chunk.is_pinned for worker in workers for chunk in worker.hot.values())


def test_a_rank_reports_its_own_chunks_with_the_parents_of_all(workers: list[Worker]) -> None:
    each(workers, Worker.store)
    hashes = [key.chunk_hash for key in keys(workers[0].engine)]
    reported: dict[int, Any] = {}
    for worker in workers:
        for event in worker.engine.get_kv_events():
            [block] = event.block_hashes
            assert hashes.index(block) % WORLD == worker.rank
            reported[block] = event.parent_block_hash
    assert reported == dict(zip(hashes, [None, *hashes], strict=False))


def test_each_rank_clears_its_own_chunks(workers: list[Worker]) -> None:
    each(workers, Worker.store)
    assert each(workers, lambda worker: worker.engine.clear(PROMPT)) == [3, 2, 2]
    assert [worker.chunks() for worker in workers] == [[], [], []]


def test_each_rank_has_its_share_of_the_pool(workers: list[Worker]) -> None:
    sizes = {w.engine.storage_manager.local_cpu_backend.memory_allocator.size for w in workers}
    assert sizes == {POD_MIB * 1024**2 // WORLD}


def test_a_prompt_without_a_chunk_of_a_rank_leaves_nothing_behind(workers: list[Worker]) -> None:
    monitor = workers[2].engine.stats_monitor
    before = len(monitor.store_requests)
    workers[2].engine.store(PROMPT[: 2 * TOKENS], kvcaches=workers[2].kv, req_id="request")
    assert len(monitor.store_requests) == before


def test_a_loads_statistics_come_to_an_end(workers: list[Worker]) -> None:
    each(workers, Worker.store)
    each(workers, Worker.load)
    monitor = workers[0].engine.stats_monitor
    assert all(stats.end_time for stats in monitor.retrieve_requests.values())
