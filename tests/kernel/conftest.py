"""The programs that the kernel's tests run; each is compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel import toolchain


@pytest.fixture(scope="session")
def stock() -> Path:
    """The activation of the pinned release."""
    return toolchain.runner(toolchain.stock_tree())


@pytest.fixture(scope="session")
def ours() -> Path:
    """The activation of the tree under test."""
    return toolchain.runner(toolchain.patched_tree())
