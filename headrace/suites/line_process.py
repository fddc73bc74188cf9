"""A child process that is spoken to in lines of JSON, and that cannot hang its parent."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

# How long a child may take to end once its input has ended.
_END_SECONDS = 10.0


class LineProcess:
    """Runs `python -m module` with `env`; what it prints to stderr is appended to `log`.

    Messages are JSON values, one a line, on its standard input and output.
    """

    def __init__(self, module: str, env: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as stream:
            self._child = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, env=env,
            )  # fmt: skip
        self._unread = b""

    def send(self, message: Any) -> None:
        """Send one message; a child that is gone is noticed by the `receive` that follows."""
        if self._child.stdin is None:
            raise RuntimeError("the child was started without a pipe")
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the next message; None if the child ended or is silent for `seconds`."""
        if self._child.stdout is None:
            raise RuntimeError("the child was started without a pipe")
        stream = self._child.stdout.fileno()
        until = time.monotonic() + seconds
        while b"\n" not in self._unread:
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(stream, 65536) if ready else b""
            if not chunk:
                return None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))

    def end(self) -> int:
        """End the child's input, wait for it, kill it if need be, and return its status."""
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()
        try:
            return self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()
