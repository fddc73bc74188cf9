"""The compiled RESP client, driven without any of LMCache's Python."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator

from lmcache.lmcache_redis import LMCacheRedisClient

from tests.patches.lmcache.deadline import hung
from tests.patches.lmcache.fake_native import Completion
from tests.valkey_server import ValkeyServer

SECONDS = 5.0


class NativeClient:
    """One compiled client; every call waits for its completion, at most SECONDS."""

    def __init__(self, server: ValkeyServer, workers: int) -> None:
        self._client = LMCacheRedisClient(server.host, server.port, workers)

    def get(self, keys: list[str], buffers: list[bytearray]) -> Completion:
        return self._completion("GET", self._client.submit_batch_get(keys, _views(buffers)))

    def set(self, keys: list[str], buffers: list[bytearray]) -> Completion:
        return self._completion("SET", self._client.submit_batch_set(keys, _views(buffers)))

    def exists(self, keys: list[str]) -> Completion:
        return self._completion("a lookup", self._client.submit_batch_exists(keys))

    def close(self) -> None:
        self._client.close()

    def _completion(self, what: str, future_id: int) -> Completion:
        readable = select.poll()
        readable.register(self._client.event_fd(), select.POLLIN)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if not readable.poll(50):
                continue
            for completion in self._client.drain_completions():
                if completion[0] == future_id:
                    return completion  # type: ignore[no-any-return]  # the binding has no types
        raise hung(f"no completion of {what} within {SECONDS:g} s")


@contextlib.contextmanager
def native_client(server: ValkeyServer, workers: int = 1) -> Iterator[NativeClient]:
    """A compiled client for the block; with one worker, its calls share one connection."""
    client = NativeClient(server, workers)
    try:
        yield client
    finally:
        client.close()


def _views(buffers: list[bytearray]) -> list[memoryview]:
    return [memoryview(buffer) for buffer in buffers]
