"""One Valkey for each rank, on ports that differ in the rank, and what each of them was asked."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

from headrace.errors import MachineError
from tests.valkey_server import ValkeyServer

TRIES = 20
SETTLE_SECONDS = 15.0


class Shards:
    """The running servers of ranks 0, 1, … .

    Attributes:
        url: for `remote_url`, with `{rank}` for the last digit of the port.
        servers: in the order of the ranks.
    """

    def __init__(self, url: str, servers: list[ValkeyServer]) -> None:
        self.url = url
        self.servers = servers

    def calls(self, command: str) -> list[int]:
        """Return how often each server was sent `command` since its counts were reset."""
        return [_calls(server, command) for server in self.servers]

    def reset_calls(self) -> None:
        """Let all counts begin at 0."""
        for server in self.servers:
            with contextlib.closing(server.client()) as client:
                client.config_resetstat()

    def keys(self) -> list[list[bytes]]:
        """Return the keys that each server holds, sorted."""
        found = []
        for server in self.servers:
            with contextlib.closing(server.client()) as client:
                found.append(sorted(cast("list[bytes]", client.keys())))
        return found

    def wait_for_keys(self, counts: list[int]) -> None:
        """Wait until the servers hold `counts` keys: an engine stores after it has answered.

        Raises:
            AssertionError: they do not, within a bound.
        """
        until = time.monotonic() + SETTLE_SECONDS
        while (found := [len(keys) for keys in self.keys()]) != counts:
            assert time.monotonic() < until, f"expected {counts} keys on the shards, found {found}"
            time.sleep(0.05)

    def wait_for_answer(self, rank: int) -> None:
        """Wait until a server that was told to pause answers again.

        Raises:
            valkey.exceptions.TimeoutError: it does not within the time-out of its clients.
        """
        with contextlib.closing(self.servers[rank].client()) as client:
            client.ping()

    def values(self, rank: int, keys: Iterable[bytes]) -> list[bytes]:
        """Return the values of keys of a server, all of which are there."""
        with contextlib.closing(self.servers[rank].client()) as client:
            found = [cast("bytes | None", client.get(key)) for key in keys]
        assert None not in found, "expected the chunks on the server, found them gone"
        return cast("list[bytes]", found)

    def delete(self, rank: int, keys: list[bytes]) -> None:
        """Delete keys of a server, all of which are there."""
        with contextlib.closing(self.servers[rank].client()) as client:
            assert client.delete(*keys) == len(keys)

    def swap(self, rank: int, some: set[bytes], others: set[bytes]) -> None:
        """Give each of `some` keys of a server the value of one of `others`, and the reverse."""
        assert len(some) == len(others) > 0, "expected as many keys as others, and any"
        pairs = [*zip(sorted(some), sorted(others), strict=True)]
        with contextlib.closing(self.servers[rank].client()) as client:
            for one, other in pairs:
                values = cast("list[bytes]", client.mget([one, other]))
                assert None not in values and values[0] != values[1], "expected two other values"
                client.mset({one: values[1], other: values[0]})


@contextlib.contextmanager
def shards(ranks: int) -> Iterator[Shards]:
    """Run `ranks` servers, at most ten, whose ports differ in the last digit alone."""
    for _ in range(TRIES):
        # Below the range from which the kernel takes ports for clients.
        tens = random.randrange(1100, 3200)
        with contextlib.ExitStack() as stack:
            servers = []
            try:
                for rank in range(ranks):
                    server = ValkeyServer()
                    server.port = tens * 10 + rank
                    servers.append(stack.enter_context(server))
            except MachineError as taken:
                if "already in use" not in str(taken):
                    raise
                continue
            yield Shards(f"resp://{servers[0].host}:{tens}{{rank}}", servers)
            return
    raise MachineError(f"found no {ranks} free ports in a row in {TRIES} tries")


def _calls(server: ValkeyServer, command: str) -> int:
    with contextlib.closing(server.client()) as client:
        stats = cast("dict[str, Any]", client.info("commandstats"))
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))
