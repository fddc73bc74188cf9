"""Run a child process that ends with its parent, and with it all that it started in turn.

`subprocess.run` kills the child alone: pip, whose compilers then go on in a folder that the next
build clears.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

# What a process gets to put its files in order before it is killed.
PATIENCE_S = 5.0

_kept: list[int] = []


@contextlib.contextmanager
def kept_open(descriptor: int) -> Iterator[None]:
    """Within the block, hand `descriptor` to every child that writes a log.

    It stays open as long as one of them runs. What starts a daemon writes none.
    """
    _kept.append(descriptor)
    try:
        yield
    finally:
        _kept.remove(descriptor)


def run(
    words: Sequence[str],
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    stdin: str | None,
    timeout: float | None,
    log: IO[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `words` as `subprocess.run` does; both streams go to `log`, or are captured.

    Raises:
        subprocess.TimeoutExpired: it ran past `timeout` seconds. As with an interrupt, it and what
            it had started have ended by then.
    """
    with subprocess.Popen(
        words, cwd=cwd, env=env, text=True, pass_fds=tuple(_kept) if log else (),
        stdin=None if stdin is None else subprocess.PIPE,
        stdout=log or subprocess.PIPE, stderr=subprocess.STDOUT if log else subprocess.PIPE,
    ) as child:  # fmt: skip
        try:
            output, problem = child.communicate(stdin, timeout)
        except BaseException:
            end(child.pid)
            child.kill()
            raise
    return subprocess.CompletedProcess(words, child.returncode, output or "", problem or "")


def end(pid: int) -> None:
    """End a process and its descendants: SIGTERM first, on which ninja ends what it runs."""
    # A descriptor names the same process even where its number went to another one meanwhile.
    open_fds: list[int] = []
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(OSError):
            open_fds.append(os.pidfd_open(each))
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for fd in open_fds:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
            if _ended(open_fds, PATIENCE_S):
                return
    finally:
        for fd in open_fds:
            os.close(fd)


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` started and that those started, as far as they have them."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything: "12 (a) b) S 1 …"
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = list(children.get(pid, ()))
    for each in found:
        found += children.get(each, ())
    return found


def _ended(fds: Sequence[int], patience: float) -> bool:
    """Return whether all of these processes end within `patience` seconds."""
    deadline = time.monotonic() + patience
    waiting = set(fds)
    while waiting and (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select(list(waiting), [], [], left)
        waiting.difference_update(ready)
    return not waiting
