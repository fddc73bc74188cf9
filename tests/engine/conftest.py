"""Fixtures of the real engine's tests, and why they are left out by default.

They need the environment that `make engine` makes, and minutes. `tests/engine/run.py` runs them; a
plain run of pytest leaves the marker `engine` out. HEADRACE_ENGINE_MODE names one mode to run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.pipeline.layout import Layout
from headrace.suites.needle_model.checkpoint import write_needle_model
from tests.engine.deployment import MODES, Deployment, deployment
from tests.suites.sites import ROOT

WANTED = os.environ.get("HEADRACE_ENGINE_MODE")


@pytest.fixture(scope="session")
def needle_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the needle model's checkpoint."""
    folder = tmp_path_factory.mktemp("needle")
    write_needle_model(folder)
    return folder


@pytest.fixture(scope="session")
def logs() -> Path:
    """Return the folder where the engines' logs stay after the run."""
    folder = Layout(ROOT).build / "log" / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(
    scope="module",
    params=[mode for mode in MODES if WANTED in (None, mode.name)],
    ids=lambda mode: mode.name,
)
def deployed(
    request: pytest.FixtureRequest, needle_model: Path, logs: Path
) -> Iterator[Deployment]:
    """Yield one deployment of each mode, which all tests of a module share, in their order."""
    with deployment(request.param, needle_model, logs) as running:
        yield running
