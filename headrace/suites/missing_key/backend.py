"""A RemoteBackend over the RESP connector with a real LocalCPUBackend, as an engine builds them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.suites.missing_key.case import Endpoint, WrongError
from headrace.suites.missing_key.native import SOCKET_TIMEOUT_MS
from headrace.suites.missing_key.values import POISON, difference, value_of

T = TypeVar("T")

# An MLA cache as [layers, 1, tokens, 1, width] of two-byte elements, by its bytes.
SHAPES = {
    32: (1, 1, 4, 1, 4),
    4096: (2, 1, 16, 1, 64),
    1_572_864: (12, 1, 256, 1, 256),
    12_392_448: (12, 1, 256, 1, 2017),
}

# Where the engine would give up, so the suite does; LMCache's default is 10 s.
BLOCKING_SECONDS = 2

_LEAST_POOL_BYTES = 1 << 20


class Backend:
    """One RemoteBackend of a worker, its event loop in a thread of its own.

    `size` is the bytes of a chunk, one of `SHAPES`; the local memory pool holds `pool_chunks`.
    Names of chunks are small integers; their bytes come from `values.value_of`.
    """

    def __init__(
        self,
        server: Endpoint,
        prefix: str,
        size: int,
        pool_chunks: int = 8,
        blocking_seconds: float = BLOCKING_SECONDS,
        socket_timeout_ms: int = SOCKET_TIMEOUT_MS,
    ) -> None:
        import torch
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.remote_backend import RemoteBackend

        # As LMCache's engine does: a collection in its statistics code can free a forgotten memory
        # object, whose destructor then waits for the lock that this very thread holds.
        gc.disable()
        shape = SHAPES[size]
        pool_bytes = max(pool_chunks * size, _LEAST_POOL_BYTES)
        self.size = size
        self._model = f"{prefix}{size}"
        self._dtype = torch.bfloat16
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=shape[2],
            local_cpu=False,
            max_local_cpu_size=pool_bytes / 2**30,
            remote_url=f"resp://{server.host}:{server.port}",
            remote_serde="naive",
            save_unfull_chunk=False,
            blocking_timeout_secs=blocking_seconds,
            extra_config={
                "save_chunk_meta": False,
                "resp_num_threads": 2,
                "resp_socket_timeout_ms": socket_timeout_ms,
                "username": server.username,
                "password": server.password,
            },
        )
        metadata = LMCacheMetadata(
            model_name=self._model,
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=self._dtype,
            kv_shape=shape,
            use_mla=True,
            chunk_size=shape[2],
            role="worker",
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._allocator = MixedMemoryAllocator(pool_bytes)
        self._local = LocalCPUBackend(
            config, metadata, dst_device="cpu", memory_allocator=self._allocator
        )
        self._shapes, self._dtypes = metadata.get_shapes(), metadata.get_dtypes()
        self.remote = RemoteBackend(config, metadata, self._loop, self._local, dst_device="cpu")

    def key(self, chunk: int) -> Any:
        """Return the chunk's CacheEngineKey."""
        from lmcache.utils import CacheEngineKey

        return CacheEngineKey(self._model, 1, 0, chunk, self._dtype)

    def name(self, chunk: int) -> str:
        """Return the chunk's key on the server."""
        return str(self.key(chunk).to_string())

    def keys(self, chunks: Sequence[int]) -> list[Any]:
        return [self.key(chunk) for chunk in chunks]

    def poison_pool(self) -> None:
        """Overwrite the free pool, so that a buffer that nobody filled shows."""
        self._allocator.buffer.fill_(POISON)

    def allocate(self) -> Any:
        """Take one chunk's memory from the pool; None if there is none."""
        return self._local.allocate(self._shapes, self._dtypes, busy_loop=False)

    def allocated(self) -> int:
        """Return the bytes of the pool that somebody holds."""
        return int(self._allocator.pin_allocator.total_allocated_size)

    def put(self, chunk: int) -> None:
        """Store the chunk's value through the backend.

        Raises:
            WrongError: the put did not end, or failed.
        """
        import torch

        memory = self.allocate()
        value = bytearray(value_of(self.name(chunk), self.size))
        memory.tensor.flatten().view(torch.uint8).copy_(torch.frombuffer(value, dtype=torch.uint8))
        try:
            self.remote.submit_put_task(self.key(chunk), memory).result(10)
        except Exception as failure:
            # Whatever the connector raises here is what the case saw.
            raise WrongError(f"put of chunk {chunk} failed: {failure!r}") from failure
        memory.ref_count_down()

    def on_loop(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine on the backend's loop.

        Raises:
            WrongError: it did not end within `seconds`.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError as late:
            raise WrongError(f"did not return within {seconds:.1f} s") from late

    def describe(self, chunks: Sequence[int], memories: Sequence[Any]) -> str:
        """Return what came back for each chunk: "loaded", "none", or what else its bytes are."""
        return ", ".join(
            "none"
            if memory is None
            else difference(memory.byte_array, self.name(chunk)) or "loaded"
            for chunk, memory in zip(chunks, memories, strict=False)
        )

    def release(self, memories: Sequence[Any]) -> None:
        for memory in memories:
            if memory is not None:
                memory.ref_count_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The release's RemoteBackend.close() never returns with this connector, so only the
        # native threads are ended; the loop's thread is a daemon and dies with the process.
        done = threading.Event()

        def close_client() -> None:
            with contextlib.suppress(Exception):
                self.remote.connection.getWrappedConnector().client.close()
            done.set()

        self._loop.call_soon_threadsafe(close_client)
        done.wait(5)
