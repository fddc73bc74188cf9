"""Drives LMCache's compiled RESP client, never waiting longer than it was told to."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from headrace.suites.missing_key.case import Endpoint, WrongError
from headrace.suites.missing_key.values import difference, is_untouched, poisoned, value_of

# Long enough for a loopback server on a busy machine, far shorter than the suite's patience.
SOCKET_TIMEOUT_MS = 500


@dataclass(frozen=True)
class Completion:
    """What the client handed over for one batch, `ms` after it was submitted."""

    ok: bool
    error: str
    bools: list[bool] | None
    ms: float


class NativeClient:
    """One compiled client with `workers` threads, each with a connection of its own.

    The release has no socket time-out and takes no argument for one: there the client is built
    without, and a command that hangs is given up after `patience` seconds.
    """

    def __init__(
        self,
        server: Endpoint,
        patience: float,
        workers: int = 1,
        socket_timeout_ms: int = SOCKET_TIMEOUT_MS,
    ) -> None:
        # Imported late: it brings torch, which the suite's parent process does without.
        from lmcache.lmcache_redis import LMCacheRedisClient

        place = (server.host, server.port, workers, server.username, server.password)
        try:
            self._client: Any = LMCacheRedisClient(*place, socket_timeout_ms=socket_timeout_ms)
        except TypeError:
            self._client = LMCacheRedisClient(*place)
        self.patience = patience
        self._poll = select.poll()
        self._poll.register(self._client.event_fd(), select.POLLIN)
        self._ended: dict[int, tuple[bool, str, list[bool] | None]] = {}
        self._started: dict[int, float] = {}
        # Native threads hold bare pointers: a buffer lives until its client is closed.
        self._buffers: list[Sequence[bytes | bytearray]] = []

    def start_get(self, keys: Sequence[str], buffers: Sequence[bytearray]) -> int:
        self._buffers.append(buffers)
        return self._start(self._client.submit_batch_get, keys, [memoryview(b) for b in buffers])

    def start_set(self, keys: Sequence[str], values: Sequence[bytes | bytearray]) -> int:
        self._buffers.append(values)
        return self._start(self._client.submit_batch_set, keys, [memoryview(v) for v in values])

    def start_exists(self, keys: Sequence[str]) -> int:
        return self._start(self._client.submit_batch_exists, keys)

    def start_delete(self, keys: Sequence[str]) -> int:
        return self._start(self._client.submit_batch_delete, keys)

    def wait(self, batch: int, until: float | None = None) -> Completion:
        """Return the batch's completion.

        Raises:
            WrongError: none came within `patience` seconds (or by `until`, a monotonic time).
        """
        began = self._started[batch]
        deadline = until if until is not None else time.monotonic() + self.patience
        while batch not in self._ended:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WrongError(f"no completion within {time.monotonic() - began:.1f} s")
            if self._poll.poll(left * 1000):
                for number, ok, error, bools in self._client.drain_completions():
                    self._ended[int(number)] = (bool(ok), str(error), bools)
        ok, error, bools = self._ended.pop(batch)
        return Completion(ok, error, bools, (time.monotonic() - began) * 1000)

    def get(self, keys: Sequence[str], buffers: Sequence[bytearray]) -> Completion:
        return self.wait(self.start_get(keys, buffers))

    def set(self, keys: Sequence[str], values: Sequence[bytes | bytearray]) -> Completion:
        return self.wait(self.start_set(keys, values))

    def exists(self, keys: Sequence[str]) -> Completion:
        return self.wait(self.start_exists(keys))

    def delete(self, keys: Sequence[str]) -> Completion:
        return self.wait(self.start_delete(keys))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def _start(self, submit: Any, *arguments: Any) -> int:
        began = time.monotonic()
        batch = int(submit(*arguments))
        self._started[batch] = began
        return batch


def check_get(
    completion: Completion,
    keys: Sequence[str],
    buffers: Sequence[bytearray],
    present: Sequence[bool],
    untouched: bool = False,
) -> None:
    """Compare a GET with which keys should have been loaded.

    `untouched` also asks that the buffers of the others were not written to.

    Raises:
        WrongError: naming the first key that is not as it should be.
    """
    if not completion.ok:
        raise WrongError(f"the batch failed as a whole: {completion.error or 'no reason given'}")
    if completion.bools is None or len(completion.bools) != len(keys):
        raise WrongError(f"expected {len(keys)} results, one a key, got {completion.bools}")
    for index, (key, buffer) in enumerate(zip(keys, buffers, strict=True)):
        name = f"key {index + 1} of {len(keys)}"
        if completion.bools[index] != present[index]:
            said = "loaded" if completion.bools[index] else "missed"
            raise WrongError(f"{name} is reported {said}{_because(completion)}")
        if present[index]:
            problem = difference(buffer, key)
            if problem:
                raise WrongError(f"{name} is reported loaded with {problem}")
        elif untouched and not is_untouched(buffer):
            raise WrongError(f"{name} is reported missed, yet its buffer was written to")


def load_good(client: NativeClient, key: str, size: int, after: str) -> Completion:
    """GET one key that the server holds: the proof that the connection is in step.

    Raises:
        WrongError: it hung, missed, or gave other bytes; the text says after what.
    """
    buffer = poisoned(size)
    try:
        completion = client.get([key], [buffer])
        check_get(completion, [key], [buffer], [True])
    except WrongError as wrong:
        raise WrongError(f"{after}, then the next GET: {wrong}") from wrong
    return completion


def store_good(client: NativeClient, keys: Sequence[str], size: int) -> None:
    """SET each key's own value.

    Raises:
        WrongError: the client says that it failed.
    """
    completion = client.set(keys, [value_of(key, size) for key in keys])
    if not completion.ok:
        raise WrongError(f"SET of {len(keys)} keys failed: {completion.error}")


def _because(completion: Completion) -> str:
    return f" ({completion.error})" if completion.error else ""
