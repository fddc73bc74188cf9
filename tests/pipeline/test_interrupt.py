"""A build that is ended, by whatever signal, leaves nothing that a later one would fall over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.console import call
from headrace.errors import WheelError
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import build_lock

# A build whose one command, like pip, starts another that runs until there is a file "go".
BUILD = """
import sys
from pathlib import Path
from headrace.console import call
from headrace.errors import WheelError
from headrace.pipeline import cli
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import build_lock

root = Path(sys.argv[1])

@cli.app.command()
def long() -> None:
    with build_lock(Layout(root)):
        wait = "sh -c 'until test -e go; do sleep 0.1; done'"
        script = f"{wait} & echo $! > pid.new; mv pid.new pid; wait"
        call(["sh", "-c", script], error=WheelError, cwd=root, log=root / "x.log")

sys.argv = ["build.py", "long"]
cli.main()
"""


def start(root: Path) -> tuple[subprocess.Popen[str], int]:
    """Start such a build; return it and the process that its command started."""
    build = subprocess.Popen([sys.executable, "-c", BUILD, root], stderr=subprocess.PIPE, text=True)
    await_(lambda: (root / "pid").exists())
    return build, int((root / "pid").read_text())


def await_(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_build_alone_ends_what_it_runs(number: int, tmp_path: Path) -> None:
    build, pid = start(tmp_path)
    build.send_signal(number)
    _, said = build.communicate(timeout=60)
    assert not runs(pid)
    assert build.returncode == 128 + number
    assert said.endswith("interrupted; the same command goes on where it stopped\n")
    assert "Traceback" not in said


def test_the_next_build_waits_for_what_a_killed_one_left_running(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build, pid = start(tmp_path)
    build.kill()
    build.communicate(timeout=60)
    assert runs(pid)
    threading.Timer(1.0, (tmp_path / "go").touch).start()
    with build_lock(Layout(tmp_path)):
        assert not runs(pid)
    said = capfd.readouterr().err
    assert "build/.children-lock: what a killed build started is still running" in said


def test_what_goes_on_after_a_build_keeps_no_other_from_starting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as what git starts beside itself; only a killed build leaves its lock."""
    script = "sleep 20 > /dev/null 2>&1 & echo $! > pid"
    with build_lock(Layout(tmp_path)):
        call(["sh", "-c", script], error=WheelError, cwd=tmp_path, log=tmp_path / "x.log")
    pid = int((tmp_path / "pid").read_text())
    try:
        with build_lock(Layout(tmp_path)):
            assert runs(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert "waiting" not in capfd.readouterr().err
