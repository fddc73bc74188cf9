"""Cases of the Python client: completions that arrive before anybody waits for them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from headrace.suites.missing_key.case import Case, Endpoint, Seen, Surroundings
from headrace.suites.missing_key.case import WrongError as Wrong
from headrace.suites.missing_key.deadline import within
from headrace.suites.missing_key.values import difference, poisoned, value_of

THREADS = 16
CALLS_PER_THREAD = 1000
# A fix that holds a lock while it submits would never let the drain in: the fake waits this long.
_FORCED_SECONDS = 0.5
_BYTES = 4096


def completion_cases() -> Iterator[Case]:
    """Yield the cases of this file."""
    for name in ("get", "set", "exists"):
        yield Case(
            f"completion/drained before {name} registers",
            "the call returns its result, nothing stays pending",
            partial(_forced, operation=name),
        )
    yield Case(
        f"completion/{THREADS} threads, {THREADS * CALLS_PER_THREAD} synchronous lookups",
        "every call returns",
        _many_threads,
        seconds=60,
    )
    yield Case(
        "completion/batch GET with a missing key",
        "one result a key: loaded, missed, loaded",
        _results_per_key,
    )


class EagerClient:
    """A native client whose completions are drained before the submitting call has returned."""

    def __init__(self) -> None:
        self._wake, self._signal = os.pipe()
        os.set_blocking(self._wake, False)
        self._lock = threading.Lock()
        self._drained = threading.Event()
        self._ended: list[tuple[int, bool, str, list[bool]]] = []
        self._number = 0

    def event_fd(self) -> int:
        return self._wake

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        return self._complete(len(keys))

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        return self._complete(len(keys))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        return self._complete(len(keys))

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        try:
            os.read(self._wake, 64)
        except BlockingIOError:
            return []
        with self._lock:
            ended, self._ended = self._ended, []
        self._drained.set()
        return ended

    def close(self) -> None:
        """Nothing to end."""

    def _complete(self, count: int) -> int:
        self._drained.clear()
        with self._lock:
            self._number += 1
            number = self._number
            self._ended.append((number, True, "", [True] * count))
        os.write(self._signal, b"!")
        self._drained.wait(_FORCED_SECONDS)
        return number


def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _forced(around: Surroundings, operation: str) -> Seen:
    from lmcache.v1.storage_backend.native_clients.connector_client_base import (
        ConnectorClientBase,
    )

    loop = _loop()
    client: Any = _on(loop, lambda: ConnectorClientBase(EagerClient(), loop))
    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: client.batch_get_sync(["key"], [memoryview(bytearray(4))]),
        "set": lambda: client.batch_set_sync(["key"], [memoryview(bytearray(4))]),
        "exists": lambda: client.batch_exists_sync(["key"]),
    }
    began = time.monotonic()
    # One element, because a call may rightly return None.
    (result,) = within(around.patience, lambda: [calls[operation]()])
    ms = (time.monotonic() - began) * 1000
    if operation == "exists" and result != [True]:
        raise Wrong(f"returned {result}")
    if client._pending:
        raise Wrong(f"returned, and {len(client._pending)} entries stay pending")
    return Seen(f"returned {result}", ms)


def _many_threads(around: Surroundings) -> Seen:
    loop, client = _resp_client(around.main, workers=4)
    done = [0] * THREADS

    def work(index: int) -> None:
        for _ in range(CALLS_PER_THREAD):
            client.batch_exists_sync([f"{around.prefix}absent"])
            done[index] += 1

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    last, moved = 0, began
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
        if sum(done) != last:
            last, moved = sum(done), time.monotonic()
        elif time.monotonic() - moved > around.patience:
            hung = sum(thread.is_alive() for thread in threads)
            raise Wrong(
                f"{hung} of {THREADS} threads hang after {last} calls, no completion within "
                f"{around.patience:.1f} s"
            )
    ms = (time.monotonic() - began) * 1000
    _on(loop, client.close)
    return Seen(f"{sum(done)} calls returned", ms)


def _results_per_key(around: Surroundings) -> Seen:
    loop, client = _resp_client(around.main, workers=1)
    keys = [f"{around.prefix}per-key-{index}" for index in range(3)]
    held = [keys[0], keys[2]]
    values = [memoryview(value_of(key, _BYTES)) for key in held]
    within(around.patience, lambda: [client.batch_set_sync(held, values)])
    buffers = [poisoned(_BYTES) for _ in keys]
    began = time.monotonic()
    (result,) = within(
        around.patience, lambda: [client.batch_get_sync(keys, [memoryview(b) for b in buffers])]
    )
    ms = (time.monotonic() - began) * 1000
    if result != [True, False, True]:
        raise Wrong(f"returned {result}")
    for index in (0, 2):
        if problem := difference(buffers[index], keys[index]):
            raise Wrong(f"key {index + 1} is reported loaded with {problem}")
    _on(loop, client.close)
    return Seen(f"returned {result}", ms)


def _resp_client(server: Endpoint, workers: int) -> tuple[asyncio.AbstractEventLoop, Any]:
    from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

    loop = _loop()
    return loop, _on(
        loop,
        lambda: RESPClient(
            server.host, server.port, workers, loop, server.username, server.password
        ),
    )


def _on(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> Any:
    """Run `call` on the loop's thread, where the client adds and removes its reader."""

    async def run() -> Any:
        return call()

    return asyncio.run_coroutine_threadsafe(run(), loop).result(10)
