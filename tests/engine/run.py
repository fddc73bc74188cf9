"""Runs the real engine's tests, mode by mode: `python -m tests.engine.run [arguments of pytest]`.

vLLM, LMCache and the servers give each other up after some seconds, as they do in production. On a
machine that stands still for one of them, a sound engine logs time-outs and computes what it could
have loaded. So a mode that is red after the machine stood still is run once more; what is red in a
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


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every mode is green, or the one that HEADRACE_ENGINE_MODE names."""
    # A mode that was ended by a signal has a negative status.
    wanted = os.environ.get("HEADRACE_ENGINE_MODE")
    statuses = [_mode(mode.name, arguments) for mode in MODES if wanted in (None, mode.name)]
    if not statuses:
        known = ", ".join(mode.name for mode in MODES)
        sys.exit(f"HEADRACE_ENGINE_MODE: expected one of {known}, found {wanted}")
    return int(any(statuses))


def _mode(name: str, arguments: Sequence[str]) -> int:
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-m", "engine", "tests/engine"]
    environment = {**os.environ, "HEADRACE_ENGINE_MODE": name}
    for left in reversed(range(RUNS)):
        with StallWatch() as watch:
            status = subprocess.call([*command, *arguments], cwd=ROOT, env=environment)
        if status == 0 or watch.longest_ms < STILL_MS or not left:
            break
        stood = f"the machine stood still for {watch.longest_ms:.0f} ms"
        print(f"mode {name}: red, and {stood}; once more", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
