"""The suite's child with cases of this file: what a group does with hangs, crashes and errors."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.suites.missing_key.case import Case, Seen, Surroundings, UnreachedError, WrongError
from headrace.suites.missing_key.child import serve

GROUP = "stand-in"


def _hang(around: Surroundings) -> Seen:
    threading.Event().wait()
    return Seen("never")


def _crash(around: Surroundings) -> Seen:
    os.kill(os.getpid(), signal.SIGKILL)
    return Seen("never")


def _wrong(around: Surroundings) -> Seen:
    raise WrongError("two\nlines")


def _unreached(around: Surroundings) -> Seen:
    raise UnreachedError("the state was not reached")


def _raises(around: Surroundings) -> Seen:
    raise KeyError("surprise")


def _noisy(around: Surroundings) -> Seen:
    sys.stdout.write("a log line on standard output\n")
    sys.stdout.flush()
    return Seen(f"process {os.getpid()}", 7.0)


def _case(name: str, run: Callable[[Surroundings], Seen], needs: str = "") -> Case:
    return Case(name, "something", run, needs=needs, waits=0, seconds=1.0)


CASES = (
    _case("first", _noisy),
    _case("hang", _hang),
    _case("second", _noisy),
    _case("crash", _crash),
    _case("wrong", _wrong),
    _case("unreached", _unreached),
    _case("raises", _raises),
    _case("private", _noisy, needs="plain"),
    _case("last", _noisy),
)


def introduce() -> Mapping[str, str]:
    missing = os.environ.get("STAND_IN_MISSING")
    return {"missing": missing} if missing else {"lmcache": Path(__file__).name}


if __name__ == "__main__":
    serve({GROUP: CASES}, introduce)
