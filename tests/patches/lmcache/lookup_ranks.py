"""A scheduler's asynchronous lookup client and the ranks that it asks, over zmq in one process."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import zmq
from lmcache.utils import CacheEngineKey
from lmcache.v1.cache_engine import LMCacheEngine
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.lookup_client import lmcache_async_lookup_client as client_module
from lmcache.v1.lookup_client.lmcache_async_lookup_client import (
    LMCacheAsyncLookupClient,
    LMCacheAsyncLookupServer,
)
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.token_database import ChunkedTokenDatabase

from tests.patches.lmcache.deadline import wait_until, within

TOKENS = 16
CHUNK = (1, 2, TOKENS, 1, 64)
# One page of the pool.
CHUNK_BYTES = 4096
SECONDS = 5.0
NEVER_MS = 3_600_000


class Call:
    """One lookup or load that has reached a tier, and waits there for the test."""

    def __init__(self, keys: list[CacheEngineKey]) -> None:
        self.keys = keys
        self.has_ended = False
        # A tier may go on using what it has loaded, so that no garbage collector gives it back.
        self.chunks: list[Any] = []
        self._loop = asyncio.get_running_loop()
        self._let_go: asyncio.Future[Exception | None] = self._loop.create_future()

    def complete(self, error: Exception | None = None) -> None:
        """Let the call find or bring its chunks, or fail, and wait until it has."""
        self._loop.call_soon_threadsafe(self._let_go.set_result, error)
        wait_until(lambda: self.has_ended, SECONDS, "a call that was let go did not end")

    async def completed(self) -> None:
        error = await self._let_go
        if error is not None:
            raise error


class SteeredTier:
    """A tier that holds the next `chunks` chunks of every prompt, and does what the test says.

    Attributes:
        lookups_wait, waits: whether a lookup or a load waits for the test to complete it.
        lookup_error, load_error: what a lookup or a load raises, None for nothing.
        lookups, loads: the calls so far, oldest first.
        pins: pins taken less pins given back, of all keys.
    """

    def __init__(self, chunks: int, allocate: Callable[[], Any]) -> None:
        self.chunks = chunks
        self.lookups_wait = False
        self.waits = False
        self.lookup_error: Exception | None = None
        self.load_error: Exception | None = None
        self.lookups: list[Call] = []
        self.loads: list[Call] = []
        self.pins = 0
        self._allocate = allocate

    async def batched_async_contains(
        self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False
    ) -> int:
        lookup = Call(keys)
        self.lookups.append(lookup)
        try:
            if self.lookups_wait:
                await lookup.completed()
            if self.lookup_error is not None:
                raise self.lookup_error
            found = min(self.chunks, len(keys))
            self.pins += found if pin else 0
            return found
        finally:
            lookup.has_ended = True

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[CacheEngineKey], transfer_spec: Any = None
    ) -> list[Any]:
        load = Call(keys)
        self.loads.append(load)
        try:
            if self.waits:
                await load.completed()
            if self.load_error is not None:
                raise self.load_error
            load.chunks = [self._allocate() for _ in keys]
            return list(load.chunks)
        finally:
            load.has_ended = True

    def pin_holder(self, key: CacheEngineKey) -> SteeredTier:
        return self

    def unpin(self, key: CacheEngineKey | None = None) -> bool:
        self.pins -= 1
        return True

    def close(self) -> None: ...


@dataclass
class Rank:
    """One rank: its engine, its lookup server and its tiers."""

    engine: LMCacheEngine
    server: LMCacheAsyncLookupServer
    tiers: list[SteeredTier] = field(default_factory=list)

    @property
    def tier(self) -> SteeredTier:
        return self.tiers[0]

    def add_tier(self, chunks: int) -> SteeredTier:
        """Add a tier behind those that are there."""
        tier = SteeredTier(chunks, self._take_chunk)
        self.tiers.append(tier)
        self.engine.storage_manager.storage_backends[f"tier {len(self.tiers)}"] = tier
        return tier

    def lookup_submitted(self, number: int = 1) -> Call:
        """Wait until the first tier has got its `number`-th lookup and return it."""
        return self._submitted(self.tier.lookups, number)

    def load_submitted(self, number: int = 1) -> Call:
        """Wait until the first tier has got its `number`-th load and return it."""
        return self._submitted(self.tier.loads, number)

    def chunks_held(self) -> int:
        """Return how many chunks are taken from the pool."""
        allocator = self.engine.storage_manager.allocator_backend.memory_allocator.pin_allocator
        taken: int = allocator.address_manager.total_allocated_size
        assert taken % CHUNK_BYTES == 0, f"{taken} bytes are no whole number of chunks"
        return taken // CHUNK_BYTES

    def retrieve(self, tokens: list[int], lookup_id: str) -> int:
        """Load what a lookup has prefetched, and return the number of loaded tokens."""
        return int(self.engine.retrieve(tokens, req_id=lookup_id).sum())

    def _submitted(self, calls: list[Call], number: int) -> Call:
        wait_until(lambda: len(calls) >= number, SECONDS, f"call {number} did not reach the tier")
        return calls[number - 1]

    def _take_chunk(self) -> Any:
        manager, metadata = self.engine.storage_manager, self.engine.metadata
        return manager.allocate(metadata.get_shapes(), metadata.get_dtypes(), busy_loop=False)


@dataclass
class Ranks:
    """The scheduler's client and all ranks."""

    client: LMCacheAsyncLookupClient
    ranks: list[Rank]

    def ask(self, tokens: list[int], lookup_id: str = "a") -> int | None:
        """Ask once, as the scheduler does at each step; None while the lookup is ongoing."""
        found: int | None = self.client.lookup_cache(lookup_id)
        if found == -1:
            found = self.client.lookup(tokens, lookup_id)
        return found

    def answer(self, tokens: list[int], lookup_id: str = "a", seconds: float = SECONDS) -> int:
        """Ask until there is an answer and return it."""
        found: list[int | None] = [None]

        def answered() -> bool:
            found[0] = within(seconds, "asking", lambda: self.ask(tokens, lookup_id))
            return found[0] is not None

        wait_until(answered, seconds, f"lookup {lookup_id} had no answer")
        assert found[0] is not None
        return found[0]

    def time_out(self, tokens: list[int], lookup_id: str = "a", after_ms: int = 300) -> None:
        """Ask until the scheduler gives the lookup up."""
        began = time.monotonic()
        self.client.config.lookup_timeout_ms = after_ms
        try:
            assert self.answer(tokens, lookup_id) == 0, "the lookup did not time out"
        finally:
            self.client.config.lookup_timeout_ms = NEVER_MS
        assert time.monotonic() - began >= after_ms / 1000, "gave up too early"

    def settle(self) -> None:
        """Let each rank's storage loop do what it has to do by now."""
        for each in self.ranks:
            pause = asyncio.sleep(0.1)
            asyncio.run_coroutine_threadsafe(pause, each.engine.storage_manager.loop).result()

    def nothing_held(self, otherwise: str) -> None:
        """Wait until no rank holds a chunk."""
        wait_until(lambda: not any(each.chunks_held() for each in self.ranks), 2.0, otherwise)


def prompt(chunks: int) -> list[int]:
    """Return the tokens of a prompt of whole chunks."""
    return list(range(chunks * TOKENS))


@contextlib.contextmanager
def lookup_ranks(world: int = 1, *, chunks: int = 4, **settings: Any) -> Iterator[Ranks]:
    """Start a client and `world` ranks, each with one tier that has `chunks` chunks of a prompt."""
    engine_id = uuid.uuid4().hex
    config = LMCacheEngineConfig.from_defaults(
        **{
            "chunk_size": TOKENS,
            "local_cpu": False,
            "max_local_cpu_size": 2**20 / 2**30,
            "save_unfull_chunk": False,
            "enable_async_loading": True,
            "lookup_timeout_ms": NEVER_MS,
            "py_enable_gc": True,
            "lmcache_instance_id": engine_id,
            **settings,
        }
    )
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(_rank(config, _metadata(engine_id, world, each)))
                 for each in range(world)]  # fmt: skip
        for each in ranks:
            each.add_tier(chunks)
        # Of its own, or close() would wait for the clients of other tests.
        with mock.patch.object(client_module, "get_zmq_context", lambda **_: zmq.Context()):
            client = LMCacheAsyncLookupClient(config, _metadata(engine_id, world))
        try:
            yield Ranks(client, ranks)
        finally:
            # Their threads wait in recv() for ever, and close() waits a second for each.
            client.running = False
            ranks[0].server.push_socket.send(b"")
            for each, socket in zip(ranks, client.push_sockets, strict=True):
                each.server.running = False
                socket.send(b"")
                each.server.thread.join(SECONDS)
            client.thread.join(SECONDS)
            within(SECONDS, "close() of the client", client.close)


@contextlib.contextmanager
def _rank(config: LMCacheEngineConfig, metadata: LMCacheMetadata) -> Iterator[Rank]:
    database = ChunkedTokenDatabase(config, metadata)
    engine = LMCacheEngine(
        config, metadata, database, MockGPUConnector(CHUNK), lambda *_: None, lambda *_: None
    )
    server = LMCacheAsyncLookupServer(engine, metadata)
    engine.post_init(async_lookup_server=server)
    try:
        yield Rank(engine, server)
    finally:
        within(SECONDS, "close() of the server", server.close)
        within(SECONDS, "close() of the storage manager", engine.storage_manager.close)


def _metadata(engine_id: str, world: int, rank: int | None = None) -> LMCacheMetadata:
    """Return the metadata of a rank, or of the scheduler."""
    return LMCacheMetadata(
        model_name="model",
        world_size=world,
        local_world_size=world,
        worker_id=rank or 0,
        local_worker_id=rank or 0,
        kv_dtype=torch.bfloat16,
        kv_shape=CHUNK,
        chunk_size=TOKENS,
        role="scheduler" if rank is None else "worker",
        engine_id=engine_id,
    )
