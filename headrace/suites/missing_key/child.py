"""The process that runs one group's cases, so that one that hangs can be ended with its threads.

Reads one line of JSON (group, surroundings), then one case name a line; answers each with one
line of JSON. Past a case's deadline it dumps every thread's stack to stderr and ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TextIO

from headrace.suites.missing_key.case import Case, Surroundings, UnreachedError, WrongError
from headrace.suites.missing_key.catalogue import groups
from headrace.suites.missing_key.native import SOCKET_TIMEOUT_MS
from headrace.suites.missing_key.stalls import StallWatch

# Half a time-out late is late enough to be the reason for one.
STALL_MS = SOCKET_TIMEOUT_MS / 2
ATTEMPTS = 3


def serve(
    catalogue: Mapping[str, Sequence[Case]], introduce: Callable[[], Mapping[str, str]]
) -> NoReturn:
    """Answer until standard input ends: first with what `introduce` returns, then with cases."""
    # LMCache logs to standard output: that goes to stderr, and the pipe is for results alone.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    around = Surroundings.from_json(order["surroundings"])
    cases = {case.name: case for case in catalogue[order["group"]]}
    _answer(results, introduce())
    for line in sys.stdin:
        case = cases[json.loads(line)]
        print(f"--- {case.name}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(case.deadline(around.patience), exit=True)
        _answer(results, run_case(case, around))
        faulthandler.cancel_dump_traceback_later()
    results.flush()
    # Threads that the release left hanging would keep a normal exit waiting.
    os._exit(0)


def run_case(case: Case, around: Surroundings) -> Mapping[str, Any]:
    """Return {"verdict", "seen", "ms"}. Whatever a case raises is what it saw.

    What was seen while the machine stood still may be its doing: the case is run again. Wrong on a
    machine that runs is red at once; wrong each time is red, and says that it stood still.
    """
    until = time.monotonic() + case.deadline(around.patience) / 2
    for attempt in range(1, ATTEMPTS + 1):
        with StallWatch() as watch:
            result = _run_once(case, around)
        if result["verdict"] == "green" or watch.longest_ms < STALL_MS:
            return result
        stalled = f"this machine stood still for {watch.longest_ms:.0f} ms"
        print(f"{stalled}: {result['seen']}", file=sys.stderr, flush=True)
        if attempt == ATTEMPTS or time.monotonic() > until:
            break
    return {**result, "seen": f"{result['seen']} ({attempt} times; {stalled})"}


def _run_once(case: Case, around: Surroundings) -> dict[str, Any]:
    began = time.monotonic()
    verdict, ms = "red", None
    try:
        seen = case.run(around)
    except WrongError as wrong:
        text = str(wrong)
    except UnreachedError as unreached:
        verdict, text = "void", str(unreached)
    except Exception as error:  # noqa: BLE001 - LMCache may raise anything, and that is a finding
        text = f"raised {type(error).__name__}: {error}"
    else:
        verdict, text, ms = "green", seen.text, seen.ms
    if ms is None:
        ms = (time.monotonic() - began) * 1000
    return {"verdict": verdict, "seen": " ".join(text.split()), "ms": round(ms, 3)}


def installed() -> Mapping[str, str]:
    """Import LMCache, and say which one it is.

    {"missing": why} if its client does not load, {"absent": why} if there is no LMCache at all.
    """
    # A first import can take long on a busy machine, but not for ever.
    faulthandler.dump_traceback_later(180, exit=True)
    try:
        import lmcache
        from lmcache import lmcache_redis
    except Exception as error:  # noqa: BLE001 - a broken extension fails in many ways
        absent = isinstance(error, ModuleNotFoundError) and error.name == "lmcache"
        return {"absent" if absent else "missing": f"{type(error).__name__}: {error}"}
    finally:
        faulthandler.cancel_dump_traceback_later()
    return {
        "lmcache": str(getattr(lmcache, "__version__", "unknown")),
        "native client": str(lmcache_redis.__file__),
    }


def _answer(results: TextIO, message: Mapping[str, Any]) -> None:
    results.write(json.dumps(message) + "\n")
    results.flush()


if __name__ == "__main__":
    serve(groups(), installed)
