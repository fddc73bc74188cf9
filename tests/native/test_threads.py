"""Many threads on one client, under ThreadSanitizer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import valkey

from headrace.suites.missing_key.values import value_of
from headrace.suites.valkey_server import ValkeyServer
from tests.native import toolchain
from tests.native.driver import Driver
from tests.native.raw_server import Connection, RawServer


@pytest.fixture(scope="module")
def program(patched_tree: Path, programs: Path) -> Path:
    return toolchain.driver(patched_tree, toolchain.THREAD, programs)


@pytest.fixture
def driver(program: Path) -> Iterator[Driver]:
    with Driver(program) as driver:
        yield driver


@pytest.fixture(autouse=True)
def empty(valkey_server: ValkeyServer) -> None:
    """A key that another test left has other bytes, which a lost SET would leave in place."""
    with contextlib.closing(valkey_server.client()) as client:
        client.flushall()


@contextlib.contextmanager
def killed_clients(server: ValkeyServer) -> Iterator[None]:
    """End every connection of the driver again and again."""
    stop = threading.Event()

    def kill() -> None:
        client = server.client()
        with contextlib.closing(client):
            while not stop.wait(0.02):
                with contextlib.suppress(valkey.ValkeyError):
                    client.client_kill_filter(skipme=True)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("size", [100, 50_000])
def test_every_answer_is_right(driver: Driver, valkey_server: ValkeyServer, size: int) -> None:
    driver.open(valkey_server.port, workers=4)
    assert driver.ask(f"stress 20000 4 20 64 {size} calm", 120) == "fine"


def test_connections_that_are_killed_lose_keys_and_nothing_else(
    driver: Driver, valkey_server: ValkeyServer
) -> None:
    with killed_clients(valkey_server):
        driver.open(valkey_server.port, workers=4)
        assert driver.ask("stress 20000 4 15 32 50000 chaos", 120) == "fine"
    assert driver.ask("stress 20000 4 2 32 50000 calm", 60) == "fine"


def test_closing_one_client_leaves_the_sockets_of_the_next_alone(
    driver: Driver, valkey_server: ValkeyServer
) -> None:
    # `open` makes the next before it closes the last. The release shuts down descriptors that its
    # workers have closed, and with them whatever the kernel gave the number to.
    for number in range(50):
        driver.open(valkey_server.port, workers=4)
        keys = [f"next{number}-{i}" for i in range(8)]
        assert driver.set({key: value_of(key, 100) for key in keys}).ok
        assert driver.get(keys, 100).bools == [True] * 8


def test_close_amid_everything(driver: Driver) -> None:
    good = b"$100\r\n" + value_of("key", 100) + b"\r\n"

    def talk(connection: Connection) -> None:
        # A few answers, then the end: some workers wait, some reconnect, when close comes.
        for _ in range(connection.number % 4):
            connection.command()
            connection.send(good)
        if connection.number % 3:
            threading.Event().wait(5)

    with RawServer(talk) as server:
        for _ in range(30):
            driver.open(server.port, workers=6, timeout_ms=60_000)
            answer = driver.ask("get 20 100 " + " ".join(f"key{i}" for i in range(60)))
            assert answer.split(" ")[0] in ("hang", "done")
            assert driver.close() < 1000
