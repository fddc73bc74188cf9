"""A server on loopback whose every connection is played by one function of the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"


class Connection:
    """One accepted connection; `number` counts from 0 in the order of acceptance."""

    def __init__(self, accepted: socket.socket, number: int) -> None:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = accepted
        self.number = number
        self._file = accepted.makefile("rb")

    def command(self) -> list[bytes]:
        """Return the words of the next command.

        Raises:
            EOFError: the client has gone.
        """
        head = self._file.readline()
        if not head:
            raise EOFError
        words = []
        for _ in range(int(head.removeprefix(b"*"))):
            size = int(self._file.readline().removeprefix(b"$"))
            words.append(self._file.read(size))
            self._file.read(2)
        return words

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)


class RawServer:
    """Runs `talk` in a thread of its own for each connection, and closes it on return.

    Attributes:
        connections: how many were accepted.
    """

    def __init__(self, talk: Callable[[Connection], None]) -> None:
        self.connections = 0
        self._talk = talk
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                self._open.append(accepted)
                connection = Connection(accepted, self.connections)
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        # The client may leave at any byte, and the end of the test closes everything.
        with contextlib.suppress(OSError, EOFError, ValueError):
            self._talk(connection)
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.socket.close()


def full_listener() -> tuple[socket.socket, list[socket.socket]]:
    """Return a listener that drops every further SYN, and what fills its queue.

    A connect to it neither succeeds nor fails: the host that does not answer.
    """
    listener = socket.create_server((HOST, 0), backlog=0)
    waiting = []
    for _ in range(3):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
        waiting.append(one)
    return listener, waiting
