"""One whole LMCache engine in this process, and its counts: references, pins, bytes of the pool."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lmcache.v1.cache_engine import LMCacheEngine, LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.event_manager import EventStatus, EventType
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata

from tests.patches.lmcache.deadline import wait_until

TOKENS = 16
PAGE = 4096
# One chunk of 16 tokens fills one page of the pool.
SHAPE = (1, 1, TOKENS, 1, PAGE // (2 * TOKENS))
SECONDS = 10.0

_instances = itertools.count()


class Scheduler:
    """Where the engine's answers to asynchronous lookups go; stands for the lookup server."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._answers: dict[str, list[int]] = {}

    def send_response_to_scheduler(self, lookup_id: str, tokens: int, *_: object) -> None:
        with self._arrived:
            self._answers.setdefault(lookup_id, []).append(tokens)
            self._arrived.notify_all()

    def answer(self, lookup_id: str) -> int:
        """Return the next answer to `lookup_id` in tokens, after waiting for it."""
        with self._arrived:
            arrived = self._arrived.wait_for(lambda: self._answers.get(lookup_id), SECONDS)
            assert arrived, f"no answer to lookup {lookup_id}"
            answers = self._answers[lookup_id]
            tokens = answers.pop(0)
            if not answers:
                del self._answers[lookup_id]
            return tokens


class Pages(MockGPUConnector):  # type: ignore[misc]
    """Stands for the paged cache: writes each chunk's first token id, notes what a load reads."""

    def __init__(self) -> None:
        super().__init__(SHAPE)
        self.loaded: list[int] = []
        self.stored: Sequence[int] = ()

    def batched_from_gpu(self, objs: Any, starts: Any, ends: Any, **_: Any) -> None:
        for obj, start in zip(objs, starts, strict=True):
            obj.tensor.view(torch.int64).fill_(self.stored[start])

    def batched_to_gpu(
        self, objs: Any = None, starts: Any = None, ends: Any = None, **_: Any
    ) -> None:
        self.loaded = [int(obj.tensor.view(torch.int64).flatten()[0]) for obj in objs]


@dataclass
class OneRank:
    """An engine that is the only rank, with what the tests need to see of it.

    Attributes:
        pages: what stands for the paged cache.
        scheduler: receives the answers to asynchronous lookups.
    """

    engine: LMCacheEngine
    pages: Pages
    scheduler: Scheduler
    asynchronous: bool

    @property
    def hot(self) -> Any:
        """The hot cache, from key to memory object."""
        return self.engine.storage_manager.storage_backends["LocalCPUBackend"].hot_cache

    def counts(self) -> list[tuple[int, int]]:
        """Return (references, pins) of each chunk in the hot cache, oldest first."""
        return [(obj.get_ref_count(), obj.metadata.pin_count) for obj in list(self.hot.values())]

    def taken(self) -> int:
        """Return the bytes that are taken from the pool."""
        cpu = self.engine.storage_manager.storage_backends["LocalCPUBackend"]
        bytes_: int = cpu.memory_allocator.pin_allocator.address_manager.total_allocated_size
        return bytes_

    def events(self) -> int:
        """Return the number of prefetches that the engine still remembers."""
        manager = self.engine.event_manager
        return sum(
            manager.get_events_count_by_status(EventType.LOADING, status) for status in EventStatus
        )

    def store(self, tokens: Sequence[int]) -> None:
        self.pages.stored = tokens
        self.engine.store(list(tokens), req_id="store")

    def lookup(self, request: str, tokens: Sequence[int]) -> int:
        """Ask as the scheduler does, and return the answer in tokens."""
        if not self.asynchronous:
            hit: int = self.engine.lookup(list(tokens), lookup_id=request, pin=True)
            return hit
        self.ask(request, tokens)
        return self.scheduler.answer(request)

    def ask(self, request: str, tokens: Sequence[int]) -> None:
        """Start an asynchronous lookup and leave its answer to come."""
        self.engine.async_lookup_and_prefetch(request, tokens=list(tokens), pin=True)

    def load(self, request: str, tokens: Sequence[int], skip: int = 0) -> int:
        """Load `tokens` but the first `skip`, and return how many were loaded.

        Raises:
            AssertionError: a chunk did not hold the bytes that were stored for it.
        """
        mask = torch.ones(len(tokens), dtype=torch.bool)
        mask[:skip] = False
        self.pages.loaded = []
        loaded = int(self.engine.retrieve(list(tokens), mask, req_id=request).sum())
        wanted = [tokens[start] for start in range(skip, skip + loaded, TOKENS)]
        assert self.pages.loaded == wanted, f"loaded {self.pages.loaded}, stored {wanted}"
        return loaded

    def step_ends(self, request: str) -> None:
        """Do what the connector's wait_for_save does for a scheduled request."""
        self.engine.lookup_unpin(request)

    def settle(self) -> None:
        """Wait until no prefetch runs any more."""
        manager = self.engine.event_manager
        wait_until(
            lambda: not manager.get_events_count_by_status(EventType.LOADING, EventStatus.ONGOING),
            SECONDS,
            "the prefetches did not end",
        )


@contextlib.contextmanager
def one_rank(*, asynchronous: bool, pool_chunks: int = 64, **options: Any) -> Iterator[OneRank]:
    """Build an engine whose pool holds `pool_chunks` chunks of 16 tokens."""
    name = f"lease-{next(_instances)}"
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=TOKENS,
        local_cpu=True,
        max_local_cpu_size=pool_chunks * PAGE / 2**30,
        save_unfull_chunk=False,
        enable_async_loading=asynchronous,
        lmcache_instance_id=name,
        **options,
    )
    metadata = LMCacheMetadata(
        model_name="model",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=SHAPE,
        use_mla=True,
        chunk_size=TOKENS,
        role="worker",
        engine_id=name,
    )
    pages, scheduler = Pages(), Scheduler()
    engine = LMCacheEngineBuilder.get_or_create(
        name, config, metadata, pages, lambda tensor, _: tensor, lambda each, _: each
    )
    engine.post_init(async_lookup_server=scheduler)
    try:
        yield OneRank(engine, pages, scheduler, asynchronous)
    finally:
        # Without the remote back end: on the pinned release its close blocks its own loop.
        manager = engine.storage_manager
        if (remote := manager.storage_backends.pop("RemoteBackend", None)) is not None:
            connector = remote.connection.getWrappedConnector()
            if (client := getattr(connector, "client", None)) is not None:
                manager.loop.call_soon_threadsafe(client.close)
        LMCacheEngineBuilder.destroy(name)
