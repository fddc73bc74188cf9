"""The process that measures one build of LMCache: whichever comes first on its PYTHONPATH.

Reads requests and answers them, one line of JSON each; `headrace.bench.resp` is the other end.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TextIO

from headrace.suites.missing_key.backend import Backend
from headrace.suites.missing_key.case import Endpoint
from headrace.suites.missing_key.native import NativeClient, check_get
from headrace.suites.missing_key.values import poisoned, value_of

# A batch that takes longer is a hang: the slowest one moves 200 MB.
BATCH_SECONDS = 60.0
# The deployment's setting; a bench must not measure with the suite's short one.
SOCKET_TIMEOUT_MS = 5000


class Measurer:
    """Answers one request after the other; times are in seconds, "cpu" is this process's own."""

    def __init__(self) -> None:
        self._client: NativeClient | None = None
        self._keys: list[str] = []
        self._buffers: list[bytearray] = []

    def miss(self, server: Mapping[str, Any], size: int, timeout: float) -> dict[str, Any]:
        """Time one get of a missing key as an engine does it, `timeout` being its own limit."""
        with Backend(
            Endpoint(**server),
            "bench-",
            size,
            pool_chunks=4,
            blocking_seconds=timeout,
            socket_timeout_ms=SOCKET_TIMEOUT_MS,
        ) as backend:
            backend.put(0)
            began = time.monotonic()
            memory = backend.remote.get_blocking(backend.key(1))
            seconds = time.monotonic() - began
            backend.release([memory])
            return {"seconds": seconds, "none": memory is None}

    def open(
        self, server: Mapping[str, Any], size: int, count: int, threads: int
    ) -> dict[str, Any]:
        """Connect `threads` workers, store `count` values, and check that they come back right."""
        self._keys = [f"bench-{size}-{index}" for index in range(count)]
        self._buffers = [bytearray(value_of(key, size)) for key in self._keys]
        self._client = NativeClient(
            Endpoint(**server), BATCH_SECONDS, threads, socket_timeout_ms=SOCKET_TIMEOUT_MS
        )
        self.set()
        for buffer in self._buffers:
            buffer[:] = poisoned(size)
        completion = self._client.get(self._keys, self._buffers)
        check_get(completion, self._keys, self._buffers, [True] * count)
        return {}

    def get(self) -> dict[str, Any]:
        """Time one GET of every key, in one batch."""
        cpu = time.process_time()
        completion = self._open_client().get(self._keys, self._buffers)
        cpu = time.process_time() - cpu
        if not completion.ok or completion.bools != [True] * len(self._keys):
            raise RuntimeError(f"GET failed: {completion.error or completion.bools}")
        return {"seconds": completion.ms / 1000, "cpu": cpu}

    def set(self) -> dict[str, Any]:
        """Time one SET of every key, in one batch."""
        cpu = time.process_time()
        completion = self._open_client().set(self._keys, self._buffers)
        cpu = time.process_time() - cpu
        if not completion.ok:
            raise RuntimeError(f"SET failed: {completion.error}")
        return {"seconds": completion.ms / 1000, "cpu": cpu}

    def received(self) -> dict[str, Any]:
        """Count what one GET of every key receives; needs the preloaded counter."""
        counter = ctypes.CDLL(None)
        for function in (counter.headrace_receive_calls, counter.headrace_received_bytes):
            function.restype = ctypes.c_ulong
        calls, received = counter.headrace_receive_calls(), counter.headrace_received_bytes()
        self.get()
        return {
            "calls": counter.headrace_receive_calls() - calls,
            "bytes": counter.headrace_received_bytes() - received,
        }

    def close(self) -> dict[str, Any]:
        if self._client is not None:
            self._client.__exit__(None, None, None)
            self._client = None
        return {}

    def _open_client(self) -> NativeClient:
        if self._client is None:
            raise RuntimeError("asked to measure before 'open'")
        return self._client


def main() -> None:
    """Serve requests until standard input ends, each session in a process of its own.

    A session is one "miss", or all from an "open" to its "close". It forks from a process that has
    imported LMCache and started no thread: what one session leaves behind, or how lucky it was
    with its memory, ends with it.
    """
    # LMCache logs to standard output: that goes to stderr, and the pipe is for answers alone.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    from lmcache import lmcache_redis

    _answer(answers, {"native": lmcache_redis.__file__})
    while line := sys.stdin.readline():
        # The other end waits for each answer, so nothing is buffered that both would read.
        session = os.fork()
        if session == 0:
            _session(line, answers)
        _, status = os.waitpid(session, 0)
        if status != 0:
            # It ends with another status only when it dies over a request.
            _answer(answers, {"problem": f"died with status {os.waitstatus_to_exitcode(status)}"})


def _session(line: str, answers: TextIO) -> NoReturn:
    measurer = Measurer()
    while line:
        request = json.loads(line)
        do = request.pop("do")
        act: Callable[..., dict[str, Any]] = getattr(measurer, do)
        try:
            answer = act(**request)
        except Exception as error:  # noqa: BLE001 - the other end stops and prints it
            answer = {"problem": f"{type(error).__name__}: {error}"}
        _answer(answers, answer)
        if do in ("miss", "close"):
            break
        line = sys.stdin.readline()
    # Threads that the release left hanging would keep a normal exit waiting.
    os._exit(0)


def _answer(answers: TextIO, message: Mapping[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
