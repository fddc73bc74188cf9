"""LMCache's storage manager without an engine, and the scheduler that it answers to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.event_manager import EventManager, EventType
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.storage_manager import StorageManager

from tests.patches.lmcache.engine import TOKENS


@dataclass
class Scheduler:
    """Collects the answers to asynchronous lookups: lookup id → tokens."""

    answers: dict[str, int] = field(default_factory=dict)

    def send_response_to_scheduler(self, lookup_id: str, tokens: int, *_: object) -> None:
        assert lookup_id not in self.answers, f"{lookup_id} was answered twice"
        self.answers[lookup_id] = tokens


@dataclass
class Storage:
    """A storage manager with asynchronous loading.

    Attributes:
        manager: has a LocalCPUBackend as its only back end.
        scheduler: what `manager` answers to.
    """

    manager: Any
    scheduler: Scheduler

    async def prefetch(self, lookup_id: str, keys: Sequence[Any], lengths: list[int]) -> int:
        """Look `keys` up, load what is found, and return the answer in tokens."""
        await self.manager.async_lookup_and_prefetch(lookup_id, list(keys), lengths)
        while lookup_id not in self.scheduler.answers:
            await asyncio.sleep(0)
        return self.scheduler.answers[lookup_id]

    def pairs(self, lookup_id: str) -> list[tuple[Any, Any]]:
        """Return key and chunk of everything that a finished prefetch loaded."""
        future = self.manager.event_manager.get_event_future(EventType.LOADING, lookup_id)
        return [pair for tier in future.result() for pair in tier]


@contextlib.contextmanager
def storage(*, pool_bytes: int = 2**20) -> Iterator[Storage]:
    """Build a storage manager; end its thread, which would keep the process alive."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=TOKENS,
        local_cpu=True,
        max_local_cpu_size=pool_bytes / 2**30,
        save_unfull_chunk=False,
        enable_async_loading=True,
    )
    metadata = LMCacheMetadata(
        model_name="model", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
        kv_dtype=torch.bfloat16, kv_shape=(1, 1, TOKENS, 1, 512), use_mla=True,
        chunk_size=TOKENS, role="worker",
    )  # fmt: skip
    scheduler = Scheduler()
    manager = StorageManager(config, metadata, EventManager(), async_lookup_server=scheduler)
    try:
        yield Storage(manager, scheduler)
    finally:
        manager.loop.call_soon_threadsafe(manager.loop.stop)
        manager.thread.join(5.0)
