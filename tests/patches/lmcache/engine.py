"""LMCache's in-process RESP path without an engine: remote backend, connector, buffer pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import redis_connector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.native_clients.connector_client_base import ConnectorClientBase
from lmcache.v1.storage_backend.remote_backend import RemoteBackend

from tests.patches.lmcache.chunks import POISON
from tests.patches.lmcache.fake_native import FakeNative
from tests.patches.lmcache.loops import LoopThread, loop_thread

TOKENS = 4
PAGE = 4096
# What upstream waits for a blocking load before it gives up on it. Far above what a miss takes,
# far below the deadlines of the tests.
BLOCKING_SECONDS = 2.0


@dataclass
class Engine:
    """One rank's remote back end and what it is made of.

    Attributes:
        chunk_bytes: the one size of a value.
        connector: the RESPConnector.
    """

    chunk_bytes: int
    storage: LoopThread
    pool: LocalCPUBackend
    backend: RemoteBackend
    connector: Any

    def allocated(self) -> int:
        """Return the bytes that are taken from the pool, in whole pages."""
        allocator = self.pool.memory_allocator.pin_allocator
        taken: int = allocator.address_manager.total_allocated_size
        return taken

    @property
    def chunk_pages(self) -> int:
        """The bytes that one chunk takes from the pool."""
        return -(-self.chunk_bytes // PAGE) * PAGE

    def poison(self) -> None:
        """Fill the pool, so that a buffer nobody wrote into is known by its bytes."""
        self.pool.memory_allocator.buffer.fill_(POISON)

    def take(self, value: bytes = b"") -> Any:
        """Take one chunk's buffer from the pool and put `value` at its start."""
        connector = self.connector
        memory_obj = self.pool.allocate(
            connector.meta_shapes, connector.meta_dtypes, connector.meta_fmt, busy_loop=False
        )
        fill(memory_obj.byte_array, value)
        return memory_obj

    def prefetch(self, keys: list[CacheEngineKey]) -> Any:
        """Return the coroutine of an asynchronous load, for the storage loop."""
        return self.backend.batched_get_non_blocking("lookup", keys)


def key(index: int, rank: int = 0) -> CacheEngineKey:
    return CacheEngineKey("model", 1, rank, index, torch.bfloat16)


def fill(buffer: memoryview, value: bytes) -> None:
    """Write `value` to the start of a buffer as native code gets it."""
    buffer.cast("B")[: len(value)] = value


def content(memory_obj: Any) -> bytes | None:
    """Return the bytes of a loaded chunk, None for a miss."""
    return None if memory_obj is None else bytes(memory_obj.byte_array)


@contextlib.contextmanager
def engine(
    address: str,
    *,
    scheme: str = "resp",
    chunk_bytes: int = 4096,
    pool_chunks: int = 16,
    rank: int = 0,
    world: int = 1,
    **extra: Any,
) -> Iterator[Engine]:
    """Build the path of one of `world` ranks to `address` ("host:port").

    Its pool has `pool_chunks` chunks. `extra` is LMCache's extra_config.
    """
    pool_bytes = pool_chunks * -(-chunk_bytes // PAGE) * PAGE
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=TOKENS,
        local_cpu=False,
        max_local_cpu_size=pool_bytes / 2**30,
        remote_url=f"{scheme}://{address}",
        remote_serde="naive",
        save_unfull_chunk=False,
        blocking_timeout_secs=BLOCKING_SECONDS,
        extra_config={"save_chunk_meta": False, "resp_num_threads": 4, **extra},
    )
    metadata = LMCacheMetadata(
        model_name="model",
        world_size=world,
        local_world_size=world,
        worker_id=rank,
        local_worker_id=rank,
        kv_dtype=torch.bfloat16,
        kv_shape=(1, 1, TOKENS, 1, chunk_bytes // (2 * TOKENS)),
        use_mla=True,
        chunk_size=TOKENS,
        role="worker",
    )
    with loop_thread() as storage:
        pool = LocalCPUBackend(
            config, metadata, dst_device="cpu", memory_allocator=MixedMemoryAllocator(pool_bytes)
        )
        backend = RemoteBackend(config, metadata, storage.loop, pool, dst_device="cpu")
        assert backend.connection is not None, f"no connection to {address}"
        connector = backend.connection.getWrappedConnector()
        built = Engine(chunk_bytes, storage, pool, backend, connector)
        built.poison()
        try:
            yield built
        finally:
            # Not backend.close(): on the pinned release it blocks its own loop.
            if scheme == "resp":
                storage.loop.call_soon_threadsafe(connector.client.close)


@contextlib.contextmanager
def engine_on(
    native: FakeNative,
    monkeypatch: pytest.MonkeyPatch,
    address: str = "nowhere:1",
    **options: Any,
) -> Iterator[Engine]:
    """Build the path to a native client that the test holds in its hand."""

    def client(
        host: str, port: int, workers: int, loop: asyncio.AbstractEventLoop, *_: object
    ) -> ConnectorClientBase[Any]:
        return ConnectorClientBase(native, loop)

    monkeypatch.setattr(redis_connector, "RESPClient", client)
    with engine(address, **options) as built:
        yield built
