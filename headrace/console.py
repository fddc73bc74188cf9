"""Terminal output and child processes: one console, one `call()`.

Messages go to stderr so that `--json` and piped results on stdout stay clean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from headrace import children
from headrace.errors import HeadraceError, MachineError

console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

TAIL_LINES = 15
# What programs say, in lower case, where it is the disk that keeps them from their work.
_DISK = {
    "no space left on device": "free some and run the command again",
    "read-only file system": "make it writable and run the command again",
}


def plain(text: str) -> str:
    """Return `text` as one line that a terminal only shows: the rest is written as escapes.

    For whatever quotes a file or a server that anybody may have written.
    """
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def say(message: str) -> None:
    """Print one line of plain text for a person."""
    console.print(message, markup=False)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show `what` with a spinner and the elapsed time while the block runs."""
    started = time.monotonic()
    if not console.is_terminal:
        say(f"{what} ...")
    with console.status(Text(what)):
        yield
    say(f"{what}: {time.monotonic() - started:.1f} s")


def download_bar() -> Progress:
    """Return a progress display for transfers, in bytes."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def call(
    command: Sequence[str | Path],
    *,
    error: type[HeadraceError],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    timeout: float | None = None,
    advice: str = "",
    stdin: str | None = None,
) -> str:
    """Run `command`, print it first, and return its standard output.

    With `log`, both streams are appended to that file instead, "" is returned, and a failure
    names the file and quotes its last lines. `env` is added to the current environment.

    Raises:
        MachineError: the program does not exist, or the disk is full or read-only.
        error: it ended with another status than 0, or ran past `timeout` seconds.
    """
    words = [str(word) for word in command]
    say(f"+ {shlex.join(words)}" + (f"  (log: {log})" if log else ""))
    full_env = {**os.environ, **(env or {})}
    before = 0
    try:
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            # A path of another encoding than the locale's goes into the log as the bytes it is.
            with log.open("a", encoding="utf-8", errors="surrogateescape") as stream:
                stream.write(f"+ {shlex.join(words)}\n")
                stream.flush()
                before = stream.tell()
                done = children.run(
                    words, cwd=cwd, env=full_env, stdin=stdin, timeout=timeout, log=stream
                )
            output, problem = "", ""
        else:
            done = children.run(words, cwd=cwd, env=full_env, stdin=stdin, timeout=timeout)
            output, problem = done.stdout, done.stderr
    except FileNotFoundError as missing:
        if cwd is not None and not cwd.is_dir():
            raise MachineError(f"{cwd}: expected a folder, found none") from missing
        raise MachineError(
            f"couldn't find '{words[0]}' in PATH{'; ' + advice if advice else ''}"
        ) from missing
    except OSError as failure:
        raise disk_error(failure, log or cwd or Path()) from failure
    except subprocess.TimeoutExpired as late:
        raise error(
            f"'{words[0]}' did not end within {timeout:.0f} s: {shlex.join(words)}"
        ) from late
    if done.returncode != 0:
        written = log.read_bytes()[before:].decode(errors="replace") if log else ""
        said = (written or problem or output).splitlines()
        for line in said[-TAIL_LINES:]:
            say(f"  | {line}")
        where = f"; full log: {log}" if log else ""
        for reason, remedy in _DISK.items():
            if lines := [line.strip() for line in said if reason in line.lower()]:
                raise MachineError(f"'{words[0]}': {lines[-1][-300:]}; {remedy}{where}")
        raise error(
            f"'{words[0]}' ended with status {done.returncode}: {shlex.join(words)}{where}"
            + (f"; {advice}" if advice else "")
        )
    return output


def disk_error(failure: OSError, where: Path) -> MachineError:
    """Turn an operating system error on `where` into one line that says what to do."""
    # Of a copy the second name is the one that is written.
    place, reason = failure.filename2 or failure.filename or where, failure.strerror or str(failure)
    if isinstance(failure, shutil.Error) and isinstance(failure.args[0], list):
        # A copied folder has a line for each file, and no number.
        _, place, reason = failure.args[0][0]
    if failure.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in reason:
        return MachineError(
            f"{failure.filename2 or where}: no space left on the disk; "
            "free some and run the command again"
        )
    remedies = [f"; {remedy}" for words, remedy in _DISK.items() if words in reason.lower()]
    return MachineError(f"{place}: {reason}{''.join(remedies)}")
