"""Connections that come late, go away, say nothing or too much: the worker outlives them all."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable

import pytest

from headrace.suites.missing_key.scripted_server import Script, ScriptedServer
from headrace.suites.missing_key.values import value_of
from tests.native.driver import Done, Driver
from tests.native.raw_server import Connection, RawServer, full_listener

SIZE = 100
GOOD = b"$100\r\n" + value_of("key", SIZE) + b"\r\n"
TIMEOUT_MS = 400
PASSWORD = "correct-horse"

COMMANDS: dict[str, Callable[[Driver], Done]] = {
    "GET": lambda driver: driver.get(["key"], SIZE),
    "SET": lambda driver: driver.set({"key": value_of("key", SIZE)}),
    "LOOKUP": lambda driver: driver.exists(["key"]),
    "DEL": lambda driver: driver.delete(["key"]),
}
each_command = pytest.mark.parametrize("command", COMMANDS)


def honest(words: list[bytes]) -> bytes:
    """The answer of a server that holds "key"."""
    return {b"GET": GOOD, b"SET": b"+OK\r\n"}.get(words[0], b":1\r\n")


def serve(connection: Connection) -> None:
    while True:
        connection.send(honest(connection.command()))


def say_nothing(connection: Connection) -> None:
    threading.Event().wait(20)


def assert_yes(done: Done) -> None:
    assert (done.ok, done.bools, done.error) == (True, [True], ""), done
    assert done.buffers in ([], [value_of("key", SIZE)])


def assert_failed(done: Done, words: str) -> None:
    assert done.bools == [False], done
    assert words in done.error, done


@each_command
def test_connection_that_the_server_closed_while_idle_costs_no_key(
    driver: Driver, command: str
) -> None:
    with RawServer(lambda connection: connection.send(honest(connection.command()))) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        for round_number in range(20):
            # Half of them at once, while the end of the stream is still on its way.
            time.sleep(0.01 * (round_number % 2))
            assert_yes(COMMANDS[command](driver))
        assert server.connections == 20


@each_command
def test_connection_lost_after_the_command_was_taken_costs_no_key(
    driver: Driver, command: str
) -> None:
    def talk(connection: Connection) -> None:
        connection.send(honest(connection.command()))
        if connection.number % 2 == 0:
            connection.command()  # carried out perhaps, and never answered
        else:
            serve(connection)

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        assert_yes(COMMANDS[command](driver))
        assert_yes(COMMANDS[command](driver))
        assert server.connections == 2


@each_command
def test_server_that_always_hangs_up_fails_the_keys_at_once(driver: Driver, command: str) -> None:
    def talk(connection: Connection) -> None:
        connection.command()

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        for _ in range(3):
            done = COMMANDS[command](driver)
            assert_failed(done, "key key: connection closed before the reply")
            assert done.ms < TIMEOUT_MS


@each_command
@pytest.mark.parametrize("stray", [b"+OK\r\n", b":1\r\n", GOOD, b"$-1\r\n", b"\r\n", b"x"])
def test_bytes_that_answer_nothing_are_never_an_answer(
    driver: Driver, command: str, stray: bytes
) -> None:
    sent = threading.Event()

    def talk(connection: Connection) -> None:
        connection.send(honest(connection.command()))
        if connection.number == 0:
            connection.send(stray)
            sent.set()
        while True:
            words = connection.command()
            # Only a later connection may be asked anything: this one is out of step.
            assert connection.number > 0
            connection.send(honest(words))

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        assert_yes(COMMANDS[command](driver))
        assert sent.wait(5)
        time.sleep(0.02)
        assert_yes(COMMANDS[command](driver))
        assert server.connections == 2


def test_what_a_server_says_when_it_refuses_is_quoted(driver: Driver) -> None:
    def talk(connection: Connection) -> None:
        connection.send(b"-ERR max number of clients reached\r\n")
        time.sleep(0.02)

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        done = driver.get([f"key{i}" for i in range(10)], SIZE)
        assert done.bools == [False] * 10
        assert "ERR max number of clients reached" in done.error
        assert server.connections == 10


def test_client_limit_is_named_although_auth_meets_it(driver: Driver) -> None:
    def talk(connection: Connection) -> None:
        connection.command()
        connection.send(b"-ERR max number of clients reached\r\n")

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS, password=PASSWORD)
        done = driver.get(["key"], SIZE)
        assert_failed(done, "AUTH refused: ERR max number of clients reached")


def test_server_that_comes_late_is_found(driver: Driver) -> None:
    with ScriptedServer() as gone:
        port = gone.endpoint.port
    driver.open(port, workers=2, timeout_ms=TIMEOUT_MS)
    for _ in range(3):
        done = driver.get([f"key{i}" for i in range(100)], SIZE)
        assert done.ok
        assert done.bools == [False] * 100
        # Which of the two workers notes its failures first is not fixed.
        assert re.match(r"key key\d+: no connection to 127\.0\.0\.1:", done.error), done.error
        assert "refused" in done.error
        assert "; and 97 more" in done.error
        assert done.ms < TIMEOUT_MS
    stored = driver.set({"key": b"x" * SIZE})
    assert (stored.ok, stored.bools) == (False, [False])
    with ScriptedServer({"key": value_of("key", SIZE)}, port=port):
        for command in COMMANDS.values():
            assert_yes(command(driver))


def test_host_that_does_not_answer_costs_one_time_out(driver: Driver) -> None:
    listener, waiting = full_listener()
    driver.open(listener.getsockname()[1], timeout_ms=TIMEOUT_MS)
    done = driver.get([f"key{i}" for i in range(50)], SIZE)
    assert done.bools == [False] * 50
    assert "connect timed out" in done.error
    assert TIMEOUT_MS * 0.9 < done.ms < 2 * TIMEOUT_MS
    for each in (listener, *waiting):
        each.close()


@pytest.mark.parametrize("command", ["get", "exists", "delete"])
def test_server_that_is_silent_costs_one_and_a_quarter_time_outs(
    driver: Driver, command: str
) -> None:
    with RawServer(say_nothing) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        keys = [f"key{i}" for i in range(50)]
        done = driver.get(keys, SIZE) if command == "get" else getattr(driver, command)(keys)
        assert done.bools == [False] * 50
        assert "timed out before the reply" in done.error
        assert TIMEOUT_MS * 1.2 < done.ms < 2 * TIMEOUT_MS


def test_set_to_a_server_that_does_not_read_times_out(driver: Driver) -> None:
    with RawServer(say_nothing) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        done = driver.set({f"key{i}": 8_000_000 for i in range(4)})
        assert (done.ok, done.bools) == (False, [False] * 4)
        assert "timed out while sending the command" in done.error
        assert done.ms < 3 * TIMEOUT_MS


def test_error_before_the_command_was_read_is_quoted(driver: Driver) -> None:
    def talk(connection: Connection) -> None:
        connection.socket.recv(1)
        connection.send(b"-ERR Protocol error: invalid bulk length\r\n")
        threading.Event().wait(20)

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        done = driver.set({"key": 8_000_000})
        assert_failed(done, "(ERR Protocol error: invalid bulk length)")


def test_one_byte_within_each_time_out_is_not_for_ever(driver: Driver) -> None:
    def talk(connection: Connection) -> None:
        connection.command()
        for byte in itertools.cycle(b"-ERR "):
            connection.send(bytes([byte]))
            time.sleep(0.03)

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=60)
        done = driver.get(["key"], SIZE)
        assert_failed(done, "timed out within the reply")
        assert 600 < done.ms < 1500


def test_line_without_end_takes_no_memory(driver: Driver) -> None:
    def talk(connection: Connection) -> None:
        connection.command()
        while True:
            connection.send(b"-" + b"x" * 1_000_000)

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        before = int(driver.ask("memory"))
        for command in COMMANDS.values():
            done = command(driver)
            assert_failed(done, "x" * 100 + "x" * 60 + "...")
            assert len(done.error) < 400
            assert done.ms < TIMEOUT_MS
        assert int(driver.ask("memory")) - before < 4096  # KiB


@pytest.mark.parametrize("length", [2**31, 2**63 - 1, 2**64, 10**40])
def test_length_of_a_lie_takes_no_memory(driver: Driver, length: int) -> None:
    def talk(connection: Connection) -> None:
        connection.command()
        connection.send(b"$%d\r\n" % length)
        connection.send(b"x" * 100_000)
        serve(connection)

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        before = int(driver.ask("memory"))
        done = driver.get(["key"], SIZE)
        assert_failed(done, str(length)[:18])
        assert done.ms < TIMEOUT_MS
        assert int(driver.ask("memory")) - before < 4096  # KiB


def test_reply_in_step_keeps_the_connection_and_any_other_ends_it(driver: Driver) -> None:
    scripts = {
        b"-ERR x\r\n": False,
        b"$-1\r\n": False,
        b"$7\r\nshorter\r\n": False,
        b"$65536\r\n" + b"d" * 65536 + b"\r\n": False,
        b"$65537\r\n" + b"d" * 65537 + b"\r\n": True,
        b"$7\r\nshorter!!": True,
        b":1\r\n": True,
    }
    replies = iter(scripts)

    def talk(connection: Connection) -> None:
        while words := connection.command():
            connection.send(next(replies) if words[1] == b"scripted" else honest(words))

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        expected = 1
        for reply, ends in scripts.items():
            assert driver.get(["scripted"], SIZE).bools == [False]
            assert_yes(driver.get(["key"], SIZE))
            expected += ends
            assert server.connections == expected, reply


def test_error_texts_are_ascii_and_short(driver: Driver) -> None:
    script = Script((b"-ERR \xff\xfe\x00 " + b"long " * 100 + b"\r\n",))
    with ScriptedServer(scripts={("GET", "key"): script}) as server:
        driver.open(server.endpoint.port, timeout_ms=TIMEOUT_MS)
        done = driver.get(["key"], SIZE)
    assert done.error.startswith("key key: ERR \\xff\\xfe\\x00 long ")
    assert len(done.error) < 200


def test_reopening_leaves_no_descriptor_open(driver: Driver) -> None:
    with RawServer(lambda connection: connection.send(honest(connection.command()))) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS)
        assert_yes(driver.get(["key"], SIZE))
        before = driver.ask("descriptors")
        for _ in range(200):
            assert_yes(driver.get(["key"], SIZE))
        assert driver.ask("descriptors") == before


@pytest.mark.parametrize("timeout_ms", [0, 60_000])
@pytest.mark.parametrize("at", ["reply", "connect", "send", "idle"])
def test_close_returns_at_once(driver: Driver, timeout_ms: int, at: str) -> None:
    listener, waiting = full_listener()
    with RawServer(say_nothing) as server:
        port = listener.getsockname()[1] if at == "connect" else server.port
        driver.open(port, workers=4, timeout_ms=timeout_ms)
        if at == "send":
            text = "set 100 " + " ".join(f"key{i}=@8000000" for i in range(4))
        else:
            text = f"get 100 {SIZE} " + " ".join(f"key{i}" for i in range(400))
        if at != "idle":
            assert driver.ask(text) == "hang"
        assert driver.close() < 500
    for each in (listener, *waiting):
        each.close()


def test_password_is_sent_again_and_never_shown(driver: Driver) -> None:
    seen: list[list[bytes]] = []

    def talk(connection: Connection) -> None:
        words = connection.command()
        seen.append(words)
        if words[-1] != PASSWORD.encode():
            connection.send(b"-WRONGPASS invalid username-password pair\r\n")
            return
        connection.send(b"+OK\r\n")
        connection.send(honest(connection.command()))

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS, password=PASSWORD, username="user")
        for _ in range(3):
            assert_yes(driver.get(["key"], SIZE))
        assert seen == [[b"AUTH", b"user", PASSWORD.encode()]] * 3
        driver.open(server.port, timeout_ms=TIMEOUT_MS, password="wrong-horse")
        done = driver.get(["key", "other"], SIZE)
        assert "AUTH refused: WRONGPASS" in done.error
        assert "horse" not in done.error
        assert len(seen) == 4  # one refusal decides about the whole tile


@pytest.mark.parametrize(
    "reply",
    [
        f"-ERR unknown command 'AUTH', with args beginning with: '{PASSWORD}'\r\n",
        f"-{PASSWORD}\r\n",
        f"+{PASSWORD}\r\n",
        f"{PASSWORD}\r\n",
        f"-{'x' * 1000} {PASSWORD * 100}\r\n",
    ],
)
def test_reply_that_repeats_the_password_is_not_quoted(driver: Driver, reply: str) -> None:
    def talk(connection: Connection) -> None:
        connection.command()
        connection.send(reply.encode())
        threading.Event().wait(2)

    with RawServer(talk) as server:
        driver.open(server.port, timeout_ms=TIMEOUT_MS, password=PASSWORD)
        done = driver.get(["key"], SIZE)
        assert_failed(done, "AUTH")
        for piece in (PASSWORD, PASSWORD[:7]):
            assert piece not in done.error
