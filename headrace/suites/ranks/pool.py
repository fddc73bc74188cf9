"""A pool of ranks: commands to all of them at once, each under a deadline with stack dumps."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.suites.ranks.failures import RankDiedError, RankRaisedError, RanksHungError
from headrace.suites.ranks.logs import RankLogs
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.template import Template
from headrace.suites.ranks.wire import Answer, Wire
from headrace.suites.valkey_server import free_port

SECONDS = 20.0
_DUMP_SECONDS = 0.5


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
        self._logs = RankLogs(folder, quoted=show_stacks)
        self.world = world
        self.replica = replica or world
        self.patience = patience
        self._wires: list[Wire] = []
        self._pids: list[int] = []

    def start(self) -> None:
        """Fork the ranks and let them find each other; those that ran before are killed."""
        self.kill()
        for rank, template in enumerate(self._templates):
            log = self._logs.path(rank)
            log.unlink(missing_ok=True)
            self._wires.append(Wire(template.fork(log)))
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
            self._wires[rank].send({"do": do, **request, **own})
        answers = self._receive(asked, self.patience if seconds is None else seconds, do)
        for rank, answer in zip(asked, answers, strict=True):
            if "raised" in answer and not may_raise:
                what = " ".join(str(answer["raised"]).split())
                raise RankRaisedError(f"rank {rank}: {do} raised {what}{self._logs.see(rank)}")
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
        return self._logs.text(rank)

    def _receive(self, asked: Iterable[int], seconds: float, do: str) -> list[Answer]:
        waiting = {self._wires[rank]: rank for rank in asked}
        answers: dict[int, Answer] = {}
        until = time.monotonic() + seconds
        while waiting:
            left = until - time.monotonic()
            ready = select.select(list(waiting), [], [], left)[0] if left > 0 else []
            if not ready:
                raise self._hung(do, seconds, list(waiting.values()))
            for wire in ready:
                rank = waiting[wire]
                try:
                    answer = wire.receive()
                except EOFError as ended:
                    raise RankDiedError(
                        f"rank {rank} ended in {do}{self._logs.see(rank)}"
                    ) from ended
                if answer is not None:
                    answers[rank] = answer
                    del waiting[wire]
        return [answers[rank] for rank in sorted(answers)]

    def _hung(self, do: str, seconds: float, silent: list[int]) -> RanksHungError:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(_DUMP_SECONDS)
        self._logs.print_stacks(self.world)
        names = ", ".join(map(str, silent))
        return RanksHungError(
            f"rank{'s' if len(silent) > 1 else ''} {names} of {self.world} did not return from "
            f"{do} within {seconds:g} s{self._logs.see_silent(silent[0])}",
            silent,
        )

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
