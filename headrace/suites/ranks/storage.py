"""What a rank's storage holds, and whether it has written what it was given."""

from __future__ import annotations

import asyncio
from typing import Any

# What the CPU pool is overwritten with.
POISON = 0xA5


def held(manager: Any) -> dict[str, int]:
    """Return how many bytes are taken from the CPU pool, and how many chunks L1 has.

    Args:
        manager: an engine's storage manager; None on a rank that has no storage of its own.
    """
    if manager is None:
        return {"bytes": 0, "chunks": 0}
    backend = manager.local_cpu_backend
    allocator = backend.memory_allocator.pin_allocator
    hot = list(backend.hot_cache.values())
    return {
        "bytes": int(allocator.address_manager.total_allocated_size),
        "chunks": len(hot),
        "pinned": sum(bool(memory_obj.is_pinned) for memory_obj in hot),
        "references": sum(int(memory_obj.get_ref_count()) for memory_obj in hot),
    }


def poison(manager: Any) -> None:
    """Overwrite the CPU pool.

    Raises:
        RuntimeError: something is taken from it.
    """
    taken = held(manager)["bytes"]
    if taken:
        raise RuntimeError(f"expected an unused pool, found {taken} bytes taken")
    if manager is not None:
        manager.local_cpu_backend.memory_allocator.buffer.fill_(POISON)


def wait_for_puts(manager: Any) -> None:
    """Wait until the puts that a store has begun have ended, well or not."""
    if manager is not None:
        asyncio.run_coroutine_threadsafe(_puts_have_ended(), manager.loop).result()


async def _puts_have_ended() -> None:
    # The engine keeps no account of batched puts. What it had begun is a task of the loop by now:
    # the loop takes what it is handed in turn.
    puts = [
        task
        for task in asyncio.all_tasks()
        if "put" in getattr(task.get_coro(), "__qualname__", "")
        and task is not asyncio.current_task()
    ]
    await asyncio.gather(*puts, return_exceptions=True)
