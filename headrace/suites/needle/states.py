"""Asks every prompt cold, from L1, from L2 after a restart, and cold again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from headrace.errors import EndpointError
from headrace.suites.needle.cells import Cell, judge
from headrace.suites.needle.client import Answer, Endpoint
from headrace.suites.needle.dialect import Dialect
from headrace.suites.needle.evidence import Evidence, State, evidence_of
from headrace.suites.needle.logs import LogWatch
from headrace.suites.needle.options import Options
from headrace.suites.needle.prompt import Prompt
from headrace.suites.needle.score import score
from headrace.suites.needle.shards import Counters, Shards

# An engine counts a request a moment after it has answered it.
_COUNT_SECONDS = 2.0


@dataclass
class Asker:
    """Asks one prompt at a time, so that all that the servers count meanwhile is its own.

    Attributes:
        known: whose each code of the run is.
        logs: of the engine.
        away: takes one rank's server away for a block.
        cells: everything asked so far.
        on_cell: called with each.
    """

    options: Options
    endpoint: Endpoint
    shards: Shards
    dialect: Dialect
    known: Mapping[str, str]
    logs: LogWatch
    away: Callable[[int], AbstractContextManager[None]]
    on_cell: Callable[[Cell], None]
    cells: list[Cell] = field(default_factory=list)

    def ask(self, prompt: Prompt, state: State) -> Cell:
        """Ask `prompt` and judge the answer as one of `state`."""
        salt = f"{self.options.tag}{secrets.token_hex(8)}" if state == "control" else ""
        try:
            answer, seen = self.send(prompt, salt or self.salt(prompt))
        except EndpointError as failure:
            cell = Cell(
                prompt, state, "red", (f"no answer: {failure}",), (), "", "missing", None
            )  # fmt: skip
        else:
            cell = judge(
                prompt, state, answer, score(answer.text, prompt, self.dialect, self.known), seen,
                self.shards.expected(prompt) if len(self.shards) else (),
                cold=self.cold(prompt), exact=self.dialect.exact,
            )  # fmt: skip
        self.note(cell)
        return cell

    def salt(self, prompt: Prompt) -> str:
        """Return the mark of a prompt's keys: the run's; of its own for a negative control."""
        own = prompt.name if prompt.wanted.kind == "spoilt" else ""
        return f"{self.options.tag}{own}"

    def send(
        self, prompt: Prompt, salt: str = "", patience: float | None = None
    ) -> tuple[Answer, Evidence]:
        """Return the answer, with what endpoint and servers counted for it."""
        before, hits = self.shards.counters(), self.endpoint.hits()
        answer, computed_anew = self._complete(prompt, salt, patience)
        deadline = time.monotonic() + _COUNT_SECONDS
        after = self.endpoint.hits()
        while hits and after and time.monotonic() < deadline:
            if after.own + after.connector - hits.own - hits.connector >= (answer.cached or 0):
                break
            time.sleep(0.05)
            after = self.endpoint.hits()
        counted = [
            now.since(then) for now, then in zip(self.shards.counters(), before, strict=True)
        ]
        return answer, evidence_of(answer, counted, hits, after, computed_anew)

    def send_quietly(
        self, prompt: Prompt, salt: str = "", patience: float | None = None
    ) -> tuple[Answer, Evidence]:
        """Return the answer without asking the servers: one of them may be away."""
        answer, computed_anew = self._complete(prompt, salt, patience)
        return answer, evidence_of(answer, (), None, None, computed_anew)

    def _complete(
        self, prompt: Prompt, salt: str, patience: float | None
    ) -> tuple[Answer, int | None]:
        """Return the answer, and how many tokens were computed since their load failed."""
        self.logs.read()
        before = self.logs.computed_anew
        answer = self.endpoint.complete(
            prompt.tokens, self.dialect.answer_tokens, salt=salt,
            logprobs=self.dialect.exact is not None, patience=patience,
        )  # fmt: skip
        self.logs.read()
        return answer, self.logs.computed_anew - before if self.logs.paths else None

    def note(self, cell: Cell) -> None:
        """Take a cell into the results."""
        self.cells.append(cell)
        self.on_cell(cell)

    def cold(self, prompt: Prompt) -> Cell | None:
        """Return the cell of the first answer to `prompt`, if there was one."""
        return next((cell for cell in self.cells if cell.prompt is prompt), None)

    def settle(self, before: Sequence[Counters], prompts: Sequence[Prompt]) -> list[Counters]:
        """Wait until the servers hold every whole chunk of `prompts`, or no longer get more.

        Returns:
            What each server got since `before`.
        """
        wanted = [
            sum(self.shards.expected(prompt)[number] for prompt in prompts)
            for number in range(len(self.shards))
        ]
        deadline = time.monotonic() + self.options.settle
        while True:
            got = [
                now.since(then) for now, then in zip(self.shards.counters(), before, strict=True)
            ]
            whole = all(each.keys >= want for each, want in zip(got, wanted, strict=True))
            if whole or time.monotonic() > deadline:
                return got
            time.sleep(0.1)
