"""A memory object that the garbage collector finds gives its memory back, wherever it is found.

Such an object was lost by somebody, in a reference cycle. The collector runs in whatever thread
makes an object next, and that may be under a lock that freeing needs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lmcache import observability
from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat

from tests.patches.lmcache.deadline import within

# A collection that hangs is the last one of its process, so there is one test for the release.
STOCK_REASONS = {
    "test_one_is_found_by_a_call_of_the_statistics": r"the statistics did not return",
}

PAGE = 4096
SHAPE = torch.Size([1, 1, 16, PAGE // 32])
SECONDS = 5.0


@pytest.fixture(autouse=True)
def collected_on_demand() -> Iterator[None]:
    """Let the collector run only where a test wants it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def allocate(pool: MixedMemoryAllocator) -> Any:
    return pool.allocate([SHAPE], [torch.bfloat16], MemoryFormat.KV_MLA_FMT)


def lose_one(pool: MixedMemoryAllocator) -> None:
    """Take an object from the pool and forget it, in a cycle as a traceback makes one."""
    frame: dict[str, Any] = {"chunk": allocate(pool)}
    frame["frame"] = frame


def assert_whole(pool: MixedMemoryAllocator, chunks: int) -> None:
    """Check that the pool can give away all its chunks: none is lost, none was freed twice."""
    taken = [allocate(pool) for _ in range(chunks)]
    assert None not in taken, "a chunk is lost"
    assert len({each.meta.address for each in taken}) == chunks
    assert allocate(pool) is None
    for each in taken:
        each.ref_count_down()
    assert pool.pin_allocator.address_manager.total_allocated_size == 0
    assert pool.pin_allocator.num_active_allocations == 0


def test_one_is_found_by_a_call_of_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = MixedMemoryAllocator(4 * PAGE)
    lose_one(pool)
    monitor = observability.LMCStatsMonitor.GetOrCreate()

    def collecting() -> float:
        gc.collect()
        return 0.0

    clock = SimpleNamespace(perf_counter=collecting)
    monkeypatch.setattr(observability, "time", clock)
    within(SECONDS, "the statistics", lambda: monitor.on_lookup_request(1))
    monkeypatch.undo()
    assert_whole(pool, 4)


@pytest.mark.patched_only(reason="hangs on the release too, under the lock of the pool")
def test_one_is_found_while_another_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = MixedMemoryAllocator(4 * PAGE)
    lose_one(pool)
    take = pool.pin_allocator.allocate

    def collecting(*arguments: Any) -> Any:
        gc.collect()
        return take(*arguments)

    monkeypatch.setattr(pool.pin_allocator, "allocate", collecting)
    within(SECONDS, "the allocation", lambda: allocate(pool)).ref_count_down()
    monkeypatch.undo()
    assert_whole(pool, 4)


@pytest.mark.patched_only(reason="on the release it is freed at once")
def test_many_are_freed_by_the_next_allocation() -> None:
    pool = MixedMemoryAllocator(64 * PAGE)
    for _ in range(64):
        lose_one(pool)
    assert allocate(pool) is None
    gc.collect()
    assert_whole(pool, 64)
