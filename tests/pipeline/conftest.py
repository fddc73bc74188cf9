"""What tests of several files share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.pipeline.daemon import ensure_daemon
from headrace.pipeline.image import load_image
from headrace.pipeline.layout import Layout
from tests.pipeline.python_image import interpreter_layer
from tests.pipeline.sample_image import record_image, write_image
from tests.pipeline.toy import Checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


@pytest.fixture(scope="session")
def daemon() -> Iterator[None]:
    with ensure_daemon(Layout.find()):
        yield


@pytest.fixture(scope="session")
def interpreter(daemon: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """The lowest layer of every image here; the daemon keeps it unpacked for the whole session."""
    layer = interpreter_layer()
    layout = Layout(tmp_path_factory.mktemp("anchor"))
    record_image(layout.image("cpu"), write_image(layout.image("cpu"), [layer], {}))
    reference = load_image(layout, "cpu")
    yield layer
    subprocess.run(["docker", "rmi", "--force", reference], timeout=60, check=True)
