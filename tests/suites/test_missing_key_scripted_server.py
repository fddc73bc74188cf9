"""The scripted server answers honestly, or with exactly the bytes of a script."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from headrace.suites.missing_key.scripted_server import Script, ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer({"held": b"value"}) as running:
        yield running


def connect(server: ScriptedServer) -> socket.socket:
    connection = socket.create_connection((server.endpoint.host, server.endpoint.port), 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def receive(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or what came before the end of the stream."""
    got = b""
    while len(got) < size and (part := connection.recv(size - len(got))):
        got += part
    return got


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ((b"GET", b"held"), b"$5\r\nvalue\r\n"),
        ((b"get", b"absent"), b"$-1\r\n"),
        ((b"EXISTS", b"held"), b":1\r\n"),
        ((b"EXISTS", b"absent"), b":0\r\n"),
        ((b"TOUCH", b"held"), b":1\r\n"),
        ((b"TOUCH", b"absent"), b":0\r\n"),
        ((b"DEL", b"held"), b":1\r\n"),
        ((b"DEL", b"absent"), b":0\r\n"),
        ((b"SET", b"new", b"a\r\nb"), b"+OK\r\n"),
        ((b"PING", b"x"), b"-ERR unknown command\r\n"),
    ],
)
def test_answers_honestly(server: ScriptedServer, words: tuple[bytes, ...], answer: bytes) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(command(*words))
        assert receive(connection, len(answer)) == answer
        connection.sendall(command(b"EXISTS", b"nothing"))
        assert receive(connection, 4) == b":0\r\n", "the connection went out of step"


def test_stores_what_was_set_and_notes_the_command(server: ScriptedServer) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(command(b"SET", b"new", b"a\r\nb"))
        assert receive(connection, 5) == b"+OK\r\n"
    assert server.store["new"] == b"a\r\nb"
    assert server.commands == [("SET", "new")]


def test_sends_the_parts_of_a_script_apart(server: ScriptedServer) -> None:
    server.scripts["GET", "bad"] = Script((b"$", b"-", b"1\r\n"), pause=0.1, delay=0.1)
    with closing(connect(server)) as connection:
        began = time.monotonic()
        connection.sendall(command(b"GET", b"bad"))
        assert [connection.recv(64) for _ in range(3)] == [b"$", b"-", b"1\r\n"]
        assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("asked", [b"EXISTS", b"TOUCH"])
def test_a_scripted_lookup_answers_either_command(server: ScriptedServer, asked: bytes) -> None:
    server.scripts["LOOKUP", "bad"] = Script((b"-ERR x\r\n",))
    with closing(connect(server)) as connection:
        connection.sendall(command(asked, b"bad"))
        assert receive(connection, 8) == b"-ERR x\r\n"
    assert server.commands == [(asked.decode(), "bad")]


def test_closes_after_a_script_that_says_so_and_stays_up(server: ScriptedServer) -> None:
    server.scripts["GET", "bad"] = Script((b"$5\r\nva",), close=True)
    for _ in range(2):
        with closing(connect(server)) as connection:
            connection.sendall(command(b"GET", b"bad"))
            assert receive(connection, 64) == b"$5\r\nva"


def test_a_script_belongs_to_its_command_and_key_alone(server: ScriptedServer) -> None:
    server.scripts["GET", "held"] = Script((b"-no\r\n",))
    with closing(connect(server)) as connection:
        connection.sendall(command(b"EXISTS", b"held"))
        assert receive(connection, 4) == b":1\r\n"
        connection.sendall(command(b"GET", b"held"))
        assert receive(connection, 5) == b"-no\r\n"


def test_drops_connections_and_takes_new_ones(server: ScriptedServer) -> None:
    with closing(connect(server)) as dropped, closing(connect(server)) as other:
        for connection in (dropped, other):
            connection.sendall(command(b"EXISTS", b"held"))
            assert receive(connection, 4) == b":1\r\n"
        server.drop_connections()
        assert dropped.recv(1) == b""
        assert other.recv(1) == b""
    with closing(connect(server)) as again:
        again.sendall(command(b"EXISTS", b"held"))
        assert receive(again, 4) == b":1\r\n"


def test_ends_the_connection_of_a_peer_that_does_not_speak_resp(server: ScriptedServer) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert connection.recv(1) == b""
