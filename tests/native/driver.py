"""A driver process: LMCache's compiled RESP client without Python around it."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

# How long a batch may take before it counts as hung, and what the process gets on top of that.
HANG_SECONDS = 4.0
_SLACK_SECONDS = 20.0
_REPORT = re.compile(r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:")


class HangError(AssertionError):
    """A batch got no completion in time."""


@dataclass(frozen=True)
class Done:
    """One completion: `bools` one result a key, None if it carries none; `ms` since submission.

    `buffers` are a GET's receive buffers as they were left.
    """

    ms: float
    ok: bool
    bools: list[bool] | None
    buffers: list[bytes]
    error: str


class Driver:
    """Speaks the driver's line protocol; a sanitizer report in its output is an AssertionError.

    A write to a closed connection ends the process unless the connector asks for no signal or
    `ignore_sigpipe` is set, as it is under Python.
    """

    def __init__(self, program: Path, ignore_sigpipe: bool = False) -> None:
        # Appending: the child writes through the same offset that reading moves.
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 — lives as long as the process
        environment = os.environ | {
            # The leak check attaches to its own process, which containers often forbid.
            "ASAN_OPTIONS": "detect_leaks=0",
            "TSAN_OPTIONS": "second_deadlock_stack=1",
        }
        self._forgiven = False
        self._process = subprocess.Popen(
            [*_fixed_addresses(), str(program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment,
            restore_signals=not ignore_sigpipe,
        )  # fmt: skip

    def open(
        self,
        port: int,
        workers: int = 1,
        timeout_ms: int = 5000,
        password: str = "",
        username: str = "",
    ) -> Self:
        """Make the connector (again)."""
        text = f"open {port} {workers} {timeout_ms} {password} {username}"
        assert self.ask(text.strip()) == "opened"
        return self

    def get(self, keys: Sequence[str], size: int, patience: float = HANG_SECONDS) -> Done:
        return self._batch(f"get {patience * 1000:.0f} {size} {' '.join(keys)}", patience)

    def set(self, values: Mapping[str, bytes | int], patience: float = HANG_SECONDS) -> Done:
        """SET a batch; a number stands for a value of that many bytes."""
        pairs = " ".join(
            f"{key}=@{value}" if isinstance(value, int) else f"{key}={value.hex()}"
            for key, value in values.items()
        )
        return self._batch(f"set {patience * 1000:.0f} {pairs}", patience)

    def exists(self, keys: Sequence[str], patience: float = HANG_SECONDS) -> Done:
        return self._batch(f"exists {patience * 1000:.0f} {' '.join(keys)}", patience)

    def delete(self, keys: Sequence[str], patience: float = HANG_SECONDS) -> Done:
        return self._batch(f"del {patience * 1000:.0f} {' '.join(keys)}", patience)

    def start(self, text: str) -> None:
        """Send a line whose answer `finish` waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def finish(self, seconds: float = _SLACK_SECONDS) -> str:
        """Return the answer to the oldest line that has none."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        line = bytearray()
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise HangError(f"the driver gave no answer in {seconds} s; {self._said()}")
            piece = os.read(self._process.stdout.fileno(), 1 << 20)
            if not piece:
                raise AssertionError(f"the driver ended: {self._said()}")
            line += piece
        return line.decode().rstrip("\n")

    def ask(self, text: str, seconds: float = _SLACK_SECONDS) -> str:
        self.start(text)
        return self.finish(seconds)

    def close(self) -> float:
        """Close the connector; return the milliseconds that took."""
        return float(self.ask("close").removeprefix("closed "))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            if kind is None and not self._forgiven:
                status = self._process.wait(_SLACK_SECONDS)
                assert status == 0, f"the driver ended with {status}: {self._said()}"
                assert not self.report(), self._said()
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()

    def forgive(self) -> None:
        """Expect the process to end with a report."""
        self._forgiven = True

    def report(self) -> str:
        """Return what a sanitizer has said, or ""."""
        said = self._said()
        return said if _REPORT.search(said) else ""

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _batch(self, text: str, patience: float) -> Done:
        answer = self.ask(text, patience + _SLACK_SECONDS)
        if answer == "hang":
            raise HangError(f"no completion within {patience} s")
        word, ms, ok, bools, buffers, error = answer.split(" ", 5)
        assert word == "done", answer
        return Done(
            float(ms),
            ok == "1",
            None if bools == "-" else [flag == "1" for flag in bools],
            [] if buffers == "-" else [bytes.fromhex(one) for one in buffers.split(",")],
            error,
        )


@cache
def _fixed_addresses() -> tuple[str, ...]:
    """Return a prefix that switches address randomisation off, where that is allowed.

    Under some kernels ThreadSanitizer finds its part of the address space taken.
    """
    prefix = ("setarch", "-R")
    if shutil.which("setarch") and subprocess.run([*prefix, "true"], check=False).returncode == 0:
        return prefix
    return ()
