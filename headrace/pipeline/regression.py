"""Run a patch's regression tests on one unpacked release, for `rebase --run-tests`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.console import working
from headrace.errors import MachineError
from headrace.pipeline.layout import Layout
from headrace.pipeline.patchfile import PatchFile

# Several times what one takes; a test in it that hangs fails by its own deadline long before.
SECONDS = 420


def passes_on_release(layout: Layout, site: Path, patch: PatchFile) -> bool:
    """Return whether all regression tests of `patch` pass on the release unpacked in `site`.

    Raises:
        MachineError: pytest itself failed, so that nothing is known.
    """
    environment = {**os.environ, "PYTHONPATH": str(site), "HEADRACE_SITE": str(site)}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", *patch.regression_tests]
    with working(f"regression tests of {patch.name} on {site.name}"):
        try:
            done = subprocess.run(
                command, cwd=layout.root, env=environment, timeout=SECONDS,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            # A test that never ends is what the stock faults look like.
            return False
    if done.returncode not in (0, 1):
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise MachineError(
            f"{patch.where}: pytest ended with status {done.returncode} ({last}); "
            f"run {' '.join(command)} with PYTHONPATH={site}"
        )
    return done.returncode == 0
