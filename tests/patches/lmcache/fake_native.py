"""A native client that a test holds in its hand: it completes what and when it is told to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

Completion = tuple[int, bool, str, list[bool] | None]


@dataclass
class Call:
    """One submitted batch. `buffers` are the caller's own, to be filled by a test."""

    future_id: int
    operation: str
    keys: list[str]
    buffers: list[memoryview] = field(default_factory=list)


class FakeNative:
    """Stands in for the compiled client.

    `answer` is called inside every submit: a completion that it returns is queued before the
    submit returns. With `drain_first`, the submit then waits (at most a second, so that a lock
    which rightly keeps the drain out does not stop the test) until somebody has drained it:
    the order in which a completion gets lost.
    """

    def __init__(
        self,
        answer: Callable[[Call], Completion | None] = lambda call: None,
        *,
        drain_first: bool = False,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.calls: list[Call] = []
        self.closed = False
        self.drain_error: Exception | None = None
        self._answer = answer
        self._drain_first = drain_first
        self._on_close = on_close
        self._queue: list[Completion] = []
        self._lock = threading.Lock()
        self._drained = threading.Event()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)

    def event_fd(self) -> int:
        return self._read_end

    def submit_batch_get(self, keys: list[str], buffers: list[memoryview]) -> int:
        return self._submit("get", keys, buffers)

    def submit_batch_set(self, keys: list[str], buffers: list[memoryview]) -> int:
        return self._submit("set", keys, buffers)

    def submit_batch_exists(self, keys: list[str]) -> int:
        return self._submit("exists", keys, [])

    def drain_completions(self) -> list[Completion]:
        if self.drain_error is not None:
            raise self.drain_error
        with self._lock:
            # Something is always in the pipe here: a loop reads it, or this is the second drain.
            try:
                os.read(self._read_end, 4096)
            except BlockingIOError:
                return []
            taken, self._queue = self._queue, []
        self._drained.set()
        return taken

    def close(self) -> None:
        self._on_close()
        self.closed = True

    def complete(
        self, call: Call, bools: list[bool] | None = None, *, ok: bool = True, error: str = ""
    ) -> None:
        """Queue the completion of `call` and wake whoever watches `event_fd`."""
        self._push((call.future_id, ok, error, bools))

    def wake(self) -> None:
        """Make `event_fd` readable with nothing to drain."""
        os.write(self._write_end, b"x")

    def _submit(self, operation: str, keys: list[str], buffers: list[memoryview]) -> int:
        call = Call(len(self.calls) + 1, operation, list(keys), list(buffers))
        self.calls.append(call)
        completion = self._answer(call)
        if completion is not None:
            self._drained.clear()
            self._push(completion)
            if self._drain_first:
                self._drained.wait(1.0)
        return call.future_id

    def _push(self, completion: Completion) -> None:
        with self._lock:
            self._queue.append(completion)
        self.wake()


def everything_succeeds(call: Call) -> Completion:
    """Answer a batch as a server does that has every key."""
    return (call.future_id, True, "", None if call.operation == "set" else [True] * len(call.keys))
