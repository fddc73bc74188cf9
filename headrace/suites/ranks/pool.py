"""A pool of ranks: commands to all of them at once, each under a deadline with stack dumps."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.errors import SuiteVoidError
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.template import Template
from headrace.suites.valkey_server import free_port

Answer = dict[str, Any]

SECONDS = 20.0
_DUMP_SECONDS = 0.5
_LOG_CHARACTERS = 6000


class RanksHungError(SuiteVoidError, AssertionError):
    """Ranks did not answer in time; the stacks of all of them are in their logs.

    Attributes:
        silent: the ranks that did not answer.
    """

    def __init__(self, message: str, silent: Sequence[int]) -> None:
        super().__init__(message)
        self.silent = tuple(silent)


class RankDiedError(SuiteVoidError, AssertionError):
    """A rank's process ended where an answer was due."""


class RankRaisedError(SuiteVoidError, AssertionError):
    """A command raised on a rank, and the caller did not ask to see that."""


class RankPool:
    """`world` processes that are one replica, or several; entering the context starts them.

    Args:
        templates: what each rank is forked from; one for all, or one for each.
        folder: gets a log for each rank.
        world: the number of processes.
        replica: W, the ranks of one replica; 0 for all of them.
        patience: seconds until which all must have answered a command, unless it says otherwise.
        show_stacks: print the stacks of ranks that hang, and quote logs in messages; without, a
            message is one line that names the log.
    """

    def __init__(
        self,
        templates: Template | Sequence[Template],
        folder: Path,
        world: int,
        replica: int = 0,
        patience: float = SECONDS,
        show_stacks: bool = True,
    ) -> None:
        self._templates = (
            [templates] * world if isinstance(templates, Template) else list(templates)
        )
        self._folder = folder
        self.world = world
        self.replica = replica or world
        self.patience = patience
        self._show_stacks = show_stacks
        self._wires: list[socket.socket] = []
        self._unread: list[bytes] = []
        self._pids: list[int] = []

    def start(self) -> None:
        """Fork the ranks and let them find each other; those that ran before are killed."""
        self.kill()
        for rank, template in enumerate(self._templates):
            self._log(rank).unlink(missing_ok=True)
            self._wires.append(template.fork(self._log(rank)))
        self._unread = [b""] * self.world
        self._pids = [
            int(hello["pid"]) for hello in self._receive(range(self.world), SECONDS, "start")
        ]
        port = free_port()
        self.each(
            "join",
            per_rank=[
                {"port": port, "process": rank, "processes": self.world, "replica": self.replica}
                for rank in range(self.world)
            ],
            seconds=SECONDS,
        )

    def restart(self, settings: Settings | Sequence[Settings]) -> list[Answer]:
        """Start new processes and open an engine on each: nothing of the old ones is left."""
        self.start()
        return self.open(settings)

    def open(
        self, settings: Settings | Sequence[Settings], *, may_raise: bool = False
    ) -> list[Answer]:
        """Open an engine on each rank, with the same settings or with its own."""
        many = [settings] * self.world if not isinstance(settings, Sequence) else settings
        return self.each(
            "open",
            per_rank=[{"settings": asdict(one)} for one in many],
            seconds=SECONDS,
            may_raise=may_raise,
        )

    def each(
        self,
        do: str,
        *,
        per_rank: Sequence[Mapping[str, Any]] | None = None,
        ranks: Iterable[int] | None = None,
        seconds: float | None = None,
        may_raise: bool = False,
        **request: Any,
    ) -> list[Answer]:
        """Send a command to all ranks at once and return their answers, in the order of ranks.

        Args:
            do: the command, a method of the rank.
            per_rank: what differs between ranks, added to `request`.
            ranks: those that get the command; None for all.
            seconds: until when all of them must have answered; None for `patience`.
            may_raise: return {"raised": …} for a rank whose command raised.

        Raises:
            RanksHungError: one has not answered; all stacks were dumped. The pool must be started
                anew before its next use.
            RankDiedError: one has ended.
            RankRaisedError: the command raised, and it was not to.
        """
        asked = list(range(self.world) if ranks is None else ranks)
        for index, rank in enumerate(asked):
            own = per_rank[index] if per_rank is not None else {}
            message = {"do": do, **request, **own}
            # A rank that is gone is noticed when its answer is missing.
            with contextlib.suppress(OSError):
                self._wires[rank].sendall(json.dumps(message).encode() + b"\n")
        answers = self._receive(asked, self.patience if seconds is None else seconds, do)
        for rank, answer in zip(asked, answers, strict=True):
            if "raised" in answer and not may_raise:
                what = " ".join(str(answer["raised"]).split())
                raise RankRaisedError(f"rank {rank}: {do} raised {what}{self._see(rank)}")
        return answers

    def ask(self, rank: int, do: str, *, seconds: float | None = None, **request: Any) -> Answer:
        """Send a command to one rank and return its answer."""
        return self.each(do, ranks=[rank], seconds=seconds, **request)[0]

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank's process."""
        os.kill(self._pids[rank], number)

    def kill(self) -> None:
        """End the processes at once, hung or not."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for wire in self._wires:
            wire.close()
        self._wires, self._pids = [], []

    def log(self, rank: int) -> str:
        """Return what a rank has printed since it was started."""
        path = self._log(rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def _receive(self, asked: Iterable[int], seconds: float, do: str) -> list[Answer]:
        waiting = dict.fromkeys(asked)
        answers: dict[int, Answer] = {}
        until = time.monotonic() + seconds
        while waiting:
            left = until - time.monotonic()
            by_wire = {self._wires[rank]: rank for rank in waiting}
            ready = select.select(list(by_wire), [], [], left)[0] if left > 0 else []
            if not ready:
                raise self._hung(do, seconds, list(waiting))
            for wire in ready:
                rank = by_wire[wire]
                try:
                    chunk = wire.recv(65536)
                except ConnectionError:
                    chunk = b""
                if not chunk:
                    raise RankDiedError(f"rank {rank} ended in {do}{self._see(rank)}")
                self._unread[rank] += chunk
                if b"\n" in self._unread[rank]:
                    line, _, self._unread[rank] = self._unread[rank].partition(b"\n")
                    answers[rank] = json.loads(line)
                    del waiting[rank]
        return [answers[rank] for rank in sorted(answers)]

    def _hung(self, do: str, seconds: float, silent: list[int]) -> RanksHungError:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(_DUMP_SECONDS)
        for rank in range(self.world if self._show_stacks else 0):
            sys.stderr.write(f"--- rank {rank}, the stacks of all threads:\n{self._tail(rank)}\n")
        names = ", ".join(map(str, silent))
        return RanksHungError(
            f"rank{'s' if len(silent) > 1 else ''} {names} of {self.world} did not return from "
            f"{do} within {seconds:g} s{'' if self._show_stacks else self._see(silent[0])}",
            silent,
        )

    def _see(self, rank: int) -> str:
        """Return the end of a message about a rank: where its log is, or the log for a test."""
        return f"\n{self._tail(rank)}" if self._show_stacks else f"; see {self._log(rank)}"

    def _tail(self, rank: int) -> str:
        return self.log(rank)[-_LOG_CHARACTERS:]

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
