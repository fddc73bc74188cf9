"""Settings of the tests that run on one unpacked LMCache, stock or patched.

They need PYTHONPATH to name that LMCache, so a run of the whole suite does not collect them;
`tests/patches/test_regressions.py` runs them, once on each.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.template import Template
from tests.patches.lmcache.loops import LoopThread, loop_thread
from tests.patches.lmcache.rank_pool import WORLD, replica, template

# Before any LMCache module: it configures its logging and telemetry on import.
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

_LMCACHE = importlib.util.find_spec("lmcache")

collect_ignore_glob = [] if _LMCACHE is not None else ["test_*.py"]


def pytest_sessionstart() -> None:
    """Refuse to test another LMCache than the one that the caller meant."""
    wanted = os.environ.get("HEADRACE_SITE")
    found = _LMCACHE.origin if _LMCACHE is not None else None
    if wanted and (found is None or not Path(found).is_relative_to(Path(wanted).resolve())):
        pytest.exit(f"expected lmcache from {wanted}, found {found}", returncode=2)


@pytest.fixture(autouse=True)
def kept_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pinned release, take one fault out of the way of the tests of all others."""
    # Not earlier: importing LMCache is left to the files that use it.
    from tests.patches.lmcache.patient_drain import keep_completions

    keep_completions(monkeypatch)


@pytest.fixture
def storage_loop() -> Iterator[LoopThread]:
    """The loop that drains native completions."""
    with loop_thread() as thread:
        yield thread


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """A process that has imported LMCache, for ranks to be forked from."""
    with template(tmp_path_factory.mktemp("source") / "import.log") as importing:
        yield importing


@pytest.fixture(scope="module")
def three(
    source: Template, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RankPool, Shards]]:
    """Three ranks whose engines are not opened yet, and their servers."""
    with replica(source, tmp_path_factory.mktemp("three"), WORLD) as running:
        yield running
