"""A RESP server on loopback that answers chosen commands with exactly the bytes it is told."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headrace.suites.missing_key.case import Endpoint

HOST = "127.0.0.1"
# They answer alike; the second also refreshes the age of the key.
_LOOKUPS = ("EXISTS", "TOUCH")


@dataclass(frozen=True)
class Script:
    """What one command gets instead of an honest answer.

    Attributes:
        parts: sent one after the other, each in a segment of its own.
        pause: seconds between two parts.
        delay: seconds before the first.
        close: end the connection after the last.
    """

    parts: tuple[bytes, ...]
    pause: float = 0.0
    delay: float = 0.0
    close: bool = False


class ScriptedServer:
    """Serves GET, SET, EXISTS, TOUCH and DEL from a dict, but for the scripted pairs.

    A script answers every time its (command, key) comes, on any connection; the command LOOKUP
    stands for both EXISTS and TOUCH. Scripted SETs store nothing. Port 0 is any free one.

    Attributes:
        store: what it holds; may be changed while it runs.
        commands: every (command, key) that arrived, in order.
    """

    def __init__(
        self,
        store: Mapping[str, bytes] | None = None,
        scripts: Mapping[tuple[str, str], Script] | None = None,
        port: int = 0,
    ) -> None:
        self.store: dict[str, bytes] = dict(store or {})
        self.scripts: dict[tuple[str, str], Script] = dict(scripts or {})
        self.commands: list[tuple[str, str]] = []
        self._server = _Server((HOST, port), _Connection)
        self._server.owner = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(HOST, int(self._server.server_address[1]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._server.drop_connections()

    def drop_connections(self) -> None:
        """End every connection; new ones are accepted."""
        self._server.drop_connections()

    def answer(self, command: str, key: str, value: bytes) -> bytes:
        """Return an honest answer."""
        if command == "GET":
            held = self.store.get(key)
            return b"$-1\r\n" if held is None else b"$%d\r\n%b\r\n" % (len(held), held)
        if command == "SET":
            self.store[key] = value
            return b"+OK\r\n"
        if command in _LOOKUPS:
            return b":%d\r\n" % (key in self.store)
        if command == "DEL":
            return b":%d\r\n" % (self.store.pop(key, None) is not None)
        return b"-ERR unknown command\r\n"


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    # A batch of cases connects many clients at once.
    request_queue_size = 128
    owner: ScriptedServer

    def __init__(self, address: tuple[str, int], handler: type[_Connection]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def remember(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def drop_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.StreamRequestHandler):
    server: _Server
    # Without it the parts of a split reply would be gathered into one segment.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.remember(self.connection)

    def finish(self) -> None:
        self.server.forget(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        owner = self.server.owner
        # A client under test may leave at any byte.
        with contextlib.suppress(OSError, ValueError):
            while words := self._read_command():
                command, key = words[0].decode().upper(), words[1].decode()
                owner.commands.append((command, key))
                question = "LOOKUP" if command in _LOOKUPS else command
                script = owner.scripts.get((command, key), owner.scripts.get((question, key)))
                if script is None:
                    self.connection.sendall(
                        owner.answer(command, key, words[2] if len(words) > 2 else b"")
                    )
                    continue
                self._play(script)
                if script.close:
                    return

    def _play(self, script: Script) -> None:
        if script.delay:
            time.sleep(script.delay)
        for index, part in enumerate(script.parts):
            if index and script.pause:
                time.sleep(script.pause)
            self.connection.sendall(part)

    def _read_command(self) -> list[bytes]:
        """Return the words of one command; [] at the end of the stream.

        Raises:
            ValueError: what came is no array of bulk strings.
        """
        head = self.rfile.readline()
        if not head:
            return []
        words = []
        for _ in range(int(head.removeprefix(b"*"))):
            size = int(self.rfile.readline().removeprefix(b"$"))
            words.append(self.rfile.read(size))
            self.rfile.read(2)
        return words
