"""The two source trees, the programs compiled from them, and servers to drive them against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import load_pins
from headrace.suites.valkey_server import ValkeyServer
from tests.native import toolchain
from tests.native.driver import Driver

_TREES = {
    "stock": ("HEADRACE_STOCK_TREE", "sources", "fetch"),
    "patched": ("HEADRACE_PATCHED_TREE", "patched", "patch"),
}


def tree_of(kind: str) -> Path:
    """Return the "stock" or "patched" sources: named by the environment, or made by the build."""
    variable, stage, command = _TREES[kind]
    layout = Layout.find()
    named = os.environ.get(variable)
    folder = load_pins(layout.pins).projects["lmcache"].folder
    tree = Path(named) if named else layout.root / "build" / stage / folder
    assert (tree / toolchain.BACKENDS).is_dir(), (
        f"{tree}: expected LMCache's sources, found none; run: python build.py {command}"
    )
    return tree


@pytest.fixture(scope="session")
def stock_tree() -> Path:
    """The pristine release; HEADRACE_STOCK_TREE overrides."""
    return tree_of("stock")


@pytest.fixture(scope="session")
def patched_tree() -> Path:
    """The release with the series applied; HEADRACE_PATCHED_TREE overrides."""
    return tree_of("patched")


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where compiled test programs are kept between runs."""
    return Layout.find().root / "build" / "native"


@pytest.fixture(scope="session")
def address_program(patched_tree: Path, programs: Path) -> Path:
    """The patched driver under AddressSanitizer and UndefinedBehaviorSanitizer."""
    return toolchain.driver(patched_tree, toolchain.ADDRESS, programs)


@pytest.fixture
def driver(address_program: Path) -> Iterator[Driver]:
    """A fresh patched driver under AddressSanitizer."""
    with Driver(address_program) as driver:
        yield driver


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[ValkeyServer]:
    """A real Valkey, empty at the start of each module."""
    with ValkeyServer() as server:
        yield server
