"""What the release does with the same replies: each failure for the reason that the patch names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.suites.missing_key.scripted_server import Script, ScriptedServer
from headrace.suites.missing_key.values import value_of
from headrace.suites.valkey_server import ValkeyServer
from tests.native import toolchain
from tests.native.driver import Driver, HangError
from tests.native.raw_server import Connection, RawServer

SIZE = 100


@pytest.fixture(scope="module")
def program(stock_tree: Path, programs: Path) -> Path:
    return toolchain.driver(stock_tree, toolchain.ADDRESS, programs)


@pytest.fixture
def stock(program: Path) -> Iterator[Driver]:
    with Driver(program, ignore_sigpipe=True) as driver:
        yield driver


def test_null_reply_hangs_because_more_header_is_awaited(stock: Driver) -> None:
    sent: list[bytes] = []

    def talk(connection: Connection) -> None:
        connection.command()
        connection.send(b"$-1\r\n")
        sent.append(b"null")
        connection.command()  # never comes: the client still reads

    with RawServer(talk) as server:
        stock.open(server.port)
        with pytest.raises(HangError):
            stock.get(["absent"], SIZE, patience=1)
        assert sent == [b"null"]


def test_null_reply_as_long_as_the_header_is_a_miss(stock: Driver) -> None:
    # So the hang's reason is the length: "$99\r\n" is as long as "$-1\r\n", "$100\r\n" longer.
    with ScriptedServer() as server:
        stock.open(server.endpoint.port)
        assert stock.get(["absent"], SIZE - 1, patience=1).bools == [False]


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "SET"),
        (b"-LOADING the dataset is being read\r\n", "LOOKUP"),
        (b"$104\r\n" + b"o" * 104 + b"\r\n", "GET"),
    ],
)
def test_reply_of_another_length_poisons_the_next_command(
    stock: Driver, reply: bytes, command: str
) -> None:
    value = value_of("good", SIZE)
    with ScriptedServer({"good": value}, {(command, "scripted"): Script((reply,))}) as server:
        stock.open(server.endpoint.port)
        if command == "SET":
            stock.set({"scripted": bytes(SIZE)}, patience=1)
        elif command == "LOOKUP":
            stock.exists(["scripted"], patience=1)
        else:
            stock.get(["scripted"], SIZE, patience=1)
        done = stock.exists(["good"], patience=1)
        assert not done.ok
        # The server answers rightly: what the client read was the rest of the reply before. It may
        # have done so before the server got to the command.
        deadline = time.monotonic() + 2
        while server.commands[-1] != ("EXISTS", "good") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "EXISTS returned invalid response" in done.error
        assert server.commands[-1] == ("EXISTS", "good")


def test_worker_without_connection_dies_with_its_batch(stock: Driver) -> None:
    with ScriptedServer() as gone:
        port = gone.endpoint.port
    stock.open(port)
    with pytest.raises(HangError):
        stock.get(["key"], SIZE, patience=1)
    with ScriptedServer({"key": value_of("key", SIZE)}, port=port), pytest.raises(HangError):
        stock.get(["key"], SIZE, patience=1)


def test_connection_that_the_server_closed_costs_every_later_key(stock: Driver) -> None:
    with ScriptedServer({"key": value_of("key", SIZE)}) as server:
        stock.open(server.endpoint.port)
        assert stock.get(["key"], SIZE, patience=1).bools == [True]
        server.drop_connections()
        for _ in range(3):
            assert stock.get(["key"], SIZE, patience=1).bools == [False]


def test_results_of_a_batch_are_a_data_race(stock_tree: Path, programs: Path) -> None:
    program = toolchain.driver(stock_tree, toolchain.THREAD, programs)
    with ValkeyServer() as server, Driver(program) as driver:
        driver.open(server.port, workers=4)
        # EXISTS, because the release hangs on a GET that misses.
        keys = " ".join(f"key{i}" for i in range(64))
        for _ in range(200):
            driver.ask(f"exists 5000 {keys}")
            if driver.report():
                break
        report = driver.report()
        driver.forgive()
    assert "data race" in report
    assert "per_key_results" in report or "handle_tile_completion" in report
