"""One Valkey for each rank, on ports that differ in their last digit alone: `{rank}`."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, cast

from headrace.errors import MachineError
from headrace.suites.valkey_server import HOST, ValkeyServer

_TRIES = 50
# Below the range from which the kernel takes ports for outgoing connections.
_DECADES = range(1100, 3200)


class Shards:
    """`count` private servers, at most ten.

    Attributes:
        servers: one for each rank.
        url: the remote_url of all ranks, with `{rank}` in the port.
    """

    def __init__(self, count: int, *options: str) -> None:
        self._options = options
        self._count = count
        self._stack = ExitStack()
        self.servers: list[ValkeyServer] = []
        self.url = ""

    def flush(self) -> None:
        """Make every server empty."""
        for server in self.servers:
            with contextlib.closing(server.client()) as client:
                client.flushall()

    def reset_counts(self) -> None:
        """Let `calls` and `received` begin anew."""
        for server in self.servers:
            with contextlib.closing(server.client()) as client:
                client.config_resetstat()

    def calls(self, command: str) -> list[int]:
        """Return how often each server was asked `command`, by its own count."""
        return [
            int(self._info(server, "commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))
            for server in self.servers
        ]

    def received(self) -> list[int]:
        """Return how many bytes each server received, by its own count."""
        return [
            int(self._info(server, "stats")["total_net_input_bytes"]) for server in self.servers
        ]

    def names(self) -> list[set[str]]:
        """Return the names of what each server holds."""
        found = []
        for server in self.servers:
            with contextlib.closing(server.client()) as client:
                found.append({name.decode() for name in cast("list[bytes]", client.keys("*"))})
        return found

    def bytes_held(self) -> list[int]:
        """Return the bytes of all values that each server holds."""
        totals = []
        for server, names in zip(self.servers, self.names(), strict=True):
            with contextlib.closing(server.client()) as client:
                totals.append(sum(cast(int, client.strlen(name)) for name in names))
        return totals

    def delete(self, names: Sequence[str]) -> int:
        """Delete names wherever they are; return how many were there."""
        gone = 0
        for server in self.servers:
            with contextlib.closing(server.client()) as client:
                gone += cast(int, client.delete(*names))
        return gone

    def _info(self, server: ValkeyServer, section: str) -> dict[str, Any]:
        with contextlib.closing(server.client()) as client:
            return cast("dict[str, Any]", client.info(section))

    def __enter__(self) -> Self:
        decades = random.SystemRandom().sample(_DECADES, _TRIES)
        for decade in decades:
            ports = [decade * 10 + rank for rank in range(self._count)]
            if not all(map(_is_free, ports)):
                continue
            try:
                with ExitStack() as started:
                    for port in ports:
                        server = ValkeyServer(*self._options)
                        server.port = port
                        self.servers.append(started.enter_context(server))
                    self._stack = started.pop_all()
            except MachineError:
                # Somebody took one of them between our looking and the server's bind.
                self.servers = []
                continue
            self.url = f"resp://{HOST}:{decade}{{rank}}"
            return self
        raise MachineError(f"expected {self._count} free ports in a row, found none")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
