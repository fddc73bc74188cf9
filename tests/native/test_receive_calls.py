"""The parser must cost nothing where it matters: system calls per command, counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.suites.missing_key.values import value_of
from headrace.suites.valkey_server import ValkeyServer
from tests.native import toolchain
from tests.native.driver import Driver

COMMANDS = 200
SIZE = 1000


@pytest.fixture(scope="module")
def stock(stock_tree: Path, programs: Path) -> Iterator[Driver]:
    with Driver(toolchain.driver(stock_tree, toolchain.COUNTING, programs)) as driver:
        yield driver


@pytest.fixture(scope="module")
def patched(patched_tree: Path, programs: Path) -> Iterator[Driver]:
    with Driver(toolchain.driver(patched_tree, toolchain.COUNTING, programs)) as driver:
        yield driver


def calls_per_command(driver: Driver, server: ValkeyServer, command: str) -> list[float]:
    """Return receives, looks at the socket and sends for each key of a batch of hits."""
    keys = [f"key{i}" for i in range(COMMANDS)]
    values = {key: value_of(key, SIZE) for key in keys}
    driver.open(server.port)
    driver.set(dict(values))  # the connection is made here
    driver.ask("calls")
    if command == "get":
        done = driver.get(keys, SIZE)
    elif command == "set":
        done = driver.set(dict(values))
    else:
        done = driver.exists(keys)
    assert done.ok
    counts = driver.ask("calls").split()
    driver.close()
    return [int(count) / COMMANDS for count in counts]


@pytest.mark.parametrize("command", ["get", "set", "exists"])
def test_no_more_receives_than_the_release(
    stock: Driver, patched: Driver, valkey_server: ValkeyServer, command: str
) -> None:
    ours = calls_per_command(patched, valkey_server, command)
    theirs = calls_per_command(stock, valkey_server, command)
    # One look before each command, which a GET saves by taking value and trailer at once.
    assert ours == [{"get": 2, "set": 1, "exists": 1}[command], 1, 1]
    assert theirs == [{"get": 3, "set": 1, "exists": 1}[command], 0, 1]
