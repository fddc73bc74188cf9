"""What a case is, and how it says what it saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Endpoint:
    """A RESP server and how to log in; empty credentials send no AUTH."""

    host: str
    port: int
    username: str = ""
    password: str = ""


@dataclass(frozen=True)
class Surroundings:
    """What a case may use.

    Attributes:
        main: the Valkey that the user named, else a private one. Never flushed or reconfigured.
        prefix: starts every key that a case writes there.
        private: servers by purpose, `Case.needs` names one: "plain" (nobody else is on it, its
            connections may be dropped), "small" (3 MB, no eviction), "evicting" (48 MB, LRU),
            "locked" (wants a password).
        patience: seconds without a completion after which a command counts as hung.
    """

    main: Endpoint
    prefix: str
    private: Mapping[str, Endpoint]
    patience: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Surroundings:
        return cls(
            main=Endpoint(**data["main"]),
            prefix=data["prefix"],
            private={name: Endpoint(**server) for name, server in data["private"].items()},
            patience=data["patience"],
        )


@dataclass(frozen=True)
class Seen:
    """What a green case saw; `ms` is the decisive command's time, None for the whole case's."""

    text: str
    ms: float | None = None


class WrongError(Exception):
    """The case saw something else than it expected; the text says what."""


class UnreachedError(Exception):
    """The case could not bring about the state that it is about."""


@dataclass(frozen=True)
class Case:
    """One case; `run` returns what it saw or raises one of the two errors above.

    Attributes:
        needs: the private server without which it is void, "" for none.
        waits: how many hung commands it may sit out, each for `Surroundings.patience`.
        seconds: what it may take on top of that.
    """

    name: str
    expected: str
    run: Callable[[Surroundings], Seen]
    needs: str = ""
    waits: int = 2
    seconds: float = 20.0

    def deadline(self, patience: float) -> float:
        """Return the seconds after which the process that runs it is given up."""
        return self.seconds + self.waits * patience
