"""A pool's end of the socket to one rank: one JSON value a line in either direction."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any

Answer = dict[str, Any]


class Wire:
    """One rank's socket, for `select` as well."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._unread = b""

    def fileno(self) -> int:
        """Return the file descriptor, which `select` waits for."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a command; a rank that is gone is noticed when its answer is missing."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Answer | None:
        """Read what has arrived; return an answer once it is complete.

        Raises:
            EOFError: the rank has ended.
        """
        try:
            part = self._socket.recv(65536)
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError
        self._unread += part
        line, end, rest = self._unread.partition(b"\n")
        if not end:
            return None
        self._unread = rest
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """Close the socket: a rank that still reads ends."""
        self._socket.close()
