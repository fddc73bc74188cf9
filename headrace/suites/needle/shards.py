"""The servers that hold L2, one for each rank: their counters prove where KV came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import valkey

from headrace.errors import ConfigurationError, ShardError
from headrace.suites.needle.prompt import Prompt

_SECONDS = 20.0


@dataclass(frozen=True)
class Counters:
    """What one server has counted since it started.

    Attributes:
        gets: GET commands, found or not.
        misses: reads of keys that were not there.
        evicted: keys that it dropped for want of memory.
        keys: that it holds.
    """

    gets: int
    misses: int
    evicted: int
    keys: int

    def since(self, before: Counters) -> Counters:
        """Return what was counted since `before`."""
        return Counters(
            self.gets - before.gets, self.misses - before.misses,
            self.evicted - before.evicted, self.keys - before.keys,
        )  # fmt: skip


class Shards:
    """The servers, in the order of the ranks; or one that all ranks share."""

    def __init__(self, addresses: Sequence[str], ranks: int) -> None:
        if len(addresses) not in (0, 1, ranks):
            raise ConfigurationError(
                f"--valkey: expected one server, or one for each of {ranks} ranks, found "
                f"{len(addresses)}; write HOST:PORT with {{rank}} in it, or change --ranks"
            )
        self.addresses = [address.removeprefix("resp://") for address in addresses]
        self.ranks = ranks
        self._clients = [_client(address) for address in self.addresses]

    def __len__(self) -> int:
        return len(self._clients)

    def client(self, rank: int) -> valkey.Valkey:
        """Return a client of the server that `rank` uses."""
        return self._clients[rank % len(self._clients)]

    def counters(self) -> list[Counters]:
        """Return each server's counters.

        Raises:
            ShardError: one cannot be reached or refuses.
        """
        return [self._ask(number, _counters) for number in range(len(self._clients))]

    def expected(self, prompt: Prompt) -> list[int]:
        """Return how many chunks of a prompt each server holds."""
        if len(self) == 1:
            return [prompt.whole_chunks]
        return [prompt.owned(rank) for rank in range(len(self))]

    def who(self, number: int) -> str:
        """Return a server's name for a person: the rank's, if it is one rank's."""
        return f"shard {number}" if len(self) > 1 else "the server"

    def close(self) -> None:
        """Close all connections."""
        for each in self._clients:
            each.connection_pool.disconnect()

    def _ask(self, number: int, what: Callable[[valkey.Valkey], Counters]) -> Counters:
        where = f"--valkey {self.addresses[number]} ({self.who(number)})"
        try:
            return what(self._clients[number])
        except valkey.exceptions.AuthenticationError as refused:
            raise ShardError(
                f"{where}: expected to be let in, was refused: {refused}; "
                "set LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD"
            ) from refused
        except (valkey.ValkeyError, OSError) as failure:
            raise ShardError(
                f"{where}: expected a Valkey that answers, found: {failure}; "
                "start it, or correct the address"
            ) from failure


def _counters(client: valkey.Valkey) -> Counters:
    # The client's stubs do not tell its blocking form from its awaitable one.
    commands = cast("dict[str, Any]", client.info("commandstats"))
    stats = cast("dict[str, Any]", client.info("stats"))
    return Counters(
        sum(commands.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("get", "mget")),
        stats["keyspace_misses"], stats["evicted_keys"], cast(int, client.dbsize()),
    )  # fmt: skip


def _client(address: str) -> valkey.Valkey:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError(
            f"--valkey {address!r}: expected HOST:PORT with a port from 1 to 65535, "
            "for example valkey-lmcache-{rank}:6379"
        )
    return valkey.Valkey(
        host=host.removeprefix("[").removesuffix("]"),
        port=int(port),
        username=os.environ.get("LMCACHE_RESP_USERNAME") or None,
        password=os.environ.get("LMCACHE_RESP_PASSWORD") or None,
        socket_timeout=_SECONDS,
        socket_connect_timeout=_SECONDS,
    )
