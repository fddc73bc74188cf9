"""Pytest plugin: streams what happens to each test of upstream into a file, one JSON line an event.

Loaded with `-p headrace_results` by `headrace.pipeline.upstream_run`, which explains the events.
They are written as they happen, because a file that hangs or crashes must still tell what it had
done by then, and which test it was in.

Environment: HEADRACE_EVENTS is the file to write, HEADRACE_SITE the folder that `lmcache` must be
imported from.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from pathlib import Path

import pytest

PR_SET_PDEATHSIG = 1
TEXT_LIMIT = 300

_site = Path(os.environ["HEADRACE_SITE"]).resolve()
_events = os.open(os.environ["HEADRACE_EVENTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_owner = os.getpid()


def _write(**event: object) -> None:
    # A forked child of a test inherits the hooks; what happens in it is not the test's outcome.
    if os.getpid() == _owner:
        os.write(_events, json.dumps(event).encode() + b"\n")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Tie this process to its runner, and say where `lmcache` comes from before a test uses it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The stacks that faulthandler prints are what we want of a hung file, not its memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    origin = str(importlib.import_module("lmcache").__file__)
    _write(event="origin", file=origin)
    if not Path(origin).resolve().is_relative_to(_site):
        pytest.exit(f"lmcache comes from {origin}, expected {_site}", returncode=3)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported, or skips itself as a whole, has no tests to report it."""
    if report.outcome != "passed":
        _write(event="collect", id=report.nodeid, outcome=report.outcome, text=_text(report))


def pytest_collection_finish(session: pytest.Session) -> None:
    _write(event="collected", ids=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(event="start", id=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome: str = report.outcome
    if hasattr(report, "wasxfail"):
        # Failing as announced is what upstream wants to see, so it counts as passing.
        outcome = "passed"
    _write(event="report", id=report.nodeid, when=report.when, outcome=outcome, text=_text(report))


def pytest_runtest_logfinish(nodeid: str) -> None:
    _write(event="end", id=nodeid)


def pytest_sessionfinish(exitstatus: int) -> None:
    """Close the stream, with the modules of lmcache that did not come from the site."""
    foreign = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.split(".")[0] != "lmcache" or not isinstance(file, str):
            continue
        if not Path(file).resolve().is_relative_to(_site):
            foreign.append(file)
    _write(event="finish", status=int(exitstatus), foreign=sorted(foreign))


def _text(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return the first line of why, for a person; the log file has the rest."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        lines = str(crash.message).splitlines()
    elif isinstance(report.longrepr, tuple):
        lines = str(report.longrepr[2]).splitlines()
    else:
        lines = [line for line in str(report.longrepr or "").splitlines() if line.strip()][-1:]
    return lines[0][:TEXT_LIMIT] if lines else ""
