"""Runs the real engine's tests, part by part: `python -m tests.engine.run [arguments of pytest]`.

A part is a mode of the deployment that `test_real_engine` asks, or the needle suite's own tests.

vLLM, LMCache and the servers give each other up after some seconds, as they do in production. On a
machine that stands still for one of them, a sound engine logs time-outs and computes what it could
have loaded. So a part that is red after the machine stood still is run once more; what is red in a
quiet run, or twice, stays red.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from headrace.suites.missing_key.stalls import StallWatch
from tests.engine.deployment import MODES
from tests.suites.sites import ROOT

STILL_MS = 1000.0
RUNS = 2
PARTS = {
    **{mode.name: "tests/engine/test_real_engine.py" for mode in MODES},
    "needle-suite": "tests/engine/test_needle_suite.py",
}


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every part is green, or those that HEADRACE_ENGINE_MODE names, with commas."""
    wanted = os.environ.get("HEADRACE_ENGINE_MODE")
    names = wanted.split(",") if wanted is not None else [*PARTS]
    for name in names:
        if name not in PARTS:
            known = ", ".join(PARTS)
            sys.exit(f"HEADRACE_ENGINE_MODE: expected one of {known}, found {name or 'nothing'}")
    # A part that was ended by a signal has a negative status.
    statuses = [_part(name, arguments) for name in names]
    return int(any(statuses))


def _part(name: str, arguments: Sequence[str]) -> int:
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-m", "engine", PARTS[name]]
    environment = {**os.environ, "HEADRACE_ENGINE_MODE": name}
    for left in reversed(range(RUNS)):
        with StallWatch() as watch:
            status = subprocess.call([*command, *arguments], cwd=ROOT, env=environment)
        if status == 0 or watch.longest_ms < STILL_MS or not left:
            break
        stood = f"the machine stood still for {watch.longest_ms:.0f} ms"
        print(f"{name}: red, and {stood}; once more", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
