"""What a vLLM worker's LMCache holds. vLLM mixes this class into its workers by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any


class WorkerView:
    """Extends a worker (`worker_extension_cls`)."""

    def before_next_read(self, rank: int, port: int, commands: list[list[str]]) -> None:
        """Let rank `rank` send `commands` to the server at `port`, once, before it next reads.

        That is after the lookup: before the load, or before the fetch if chunks are fetched from
        the lookup on. What the server says is ignored.
        """
        engine = _cache_engine()
        if engine.metadata.worker_id != rank:
            return

        def spoil() -> None:
            import valkey

            with valkey.Valkey(port=port, socket_timeout=5) as client:
                for command in commands:
                    try:
                        client.execute_command(*command)
                    except valkey.ValkeyError:
                        continue

        if engine.config.enable_async_loading:
            (remote,) = (
                backend
                for name, backend in engine.storage_manager.storage_backends.items()
                if name.startswith("RemoteBackend")
            )
            _once_before(remote, "batched_get_non_blocking", spoil)
        else:
            _once_before(engine, "retrieve", spoil)

    def drop_memory(self) -> None:
        """Empty this rank's local tier."""
        engine = _cache_engine()
        if engine.storage_manager is not None:
            engine.storage_manager.local_cpu_backend.clear()

    def block_digests(self) -> list[list[str]]:
        """Return a digest of each block of this rank's paged cache, layer by layer."""
        return [
            [digest(block.contiguous().numpy().tobytes()) for block in layer]
            for layer in self.model_runner.kv_caches  # type: ignore[attr-defined]  # the worker's
        ]

    def cache_view(self) -> dict[str, Any]:
        """Return counts of this rank's chunks in memory.

        `chunks`: chunks in the local tier. `pins`: all pins on them. `extra_refs`: references on
        them beyond the local tier's own. `bytes`: allocated from the pool, prefetched included.
        `storage`: False on a rank that has no storage of its own.
        """
        engine = _cache_engine()
        if engine.storage_manager is None:
            return {"storage": False, "chunks": 0, "pins": 0, "extra_refs": 0, "bytes": 0}
        local = engine.storage_manager.local_cpu_backend
        chunks = list(local.hot_cache.values())
        return {
            "storage": True,
            "chunks": len(chunks),
            "pins": sum(chunk.metadata.pin_count for chunk in chunks),
            "extra_refs": sum(chunk.get_ref_count() - 1 for chunk in chunks),
            "bytes": local.memory_allocator.pin_allocator.total_allocated_size,
        }


def digest(block: bytes) -> str:
    """Return what stands for the bytes of a block."""
    return hashlib.blake2b(block, digest_size=16).hexdigest()


def _cache_engine() -> Any:
    from lmcache.v1.cache_engine import LMCacheEngineBuilder

    (engine,) = LMCacheEngineBuilder._instances.values()
    return engine


def _once_before(owner: Any, name: str, action: Callable[[], None]) -> None:
    """Let `action` run before the next call of a method, a coroutine function included."""
    method = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        delattr(owner, name)
        action()
        return method(*args, **kwargs)

    setattr(owner, name, call)
