"""How a suite's results look on standard output: a table for a person, plain lines for a log."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.console import console, plain
from headrace.suites.results import CaseResult, overall

_COLOURS = {"green": "green", "red": "bold red", "void": "yellow"}


def plain_line(result: CaseResult) -> str:
    """Return one case as one line."""
    return plain(
        f"{result.verdict:5} {result.ms:9.1f} ms  {result.case}: "
        f"expected {result.expected}; saw {result.seen}"
    )


def summary(results: Sequence[CaseResult]) -> str:
    """Return the verdict with the count of each kind."""
    counts = ", ".join(
        f"{sum(result.verdict == verdict for result in results)} {verdict}" for verdict in _COLOURS
    )
    return f"{overall(results)}: {len(results)} cases, {counts}"


class Reporter:
    """Shows cases while they end. Lines at once in a log; on a terminal a count, then a table."""

    def __init__(self, suite: str, output: Console) -> None:
        self._suite = suite
        self._output = output
        self._ended = 0
        self._status = console.status(suite)

    def __enter__(self) -> Self:
        if self._output.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.stop()

    def case(self, result: CaseResult) -> None:
        """Take note of one ended case."""
        self._ended += 1
        last = plain(result.case)
        self._status.update(Text(f"{self._suite}: {self._ended} cases ended, last {last}"))
        if not self._output.is_terminal:
            self._line(plain_line(result))

    def finish(self, results: Sequence[CaseResult]) -> None:
        """Print what a reader needs once all have ended."""
        self._status.stop()
        if self._output.is_terminal:
            self._output.print(_table(results))
        self._line(summary(results))

    def _line(self, text: str) -> None:
        self._output.print(text, markup=False, highlight=False, soft_wrap=True, emoji=False)


def _table(results: Sequence[CaseResult]) -> Table:
    table = Table("", "case", "expected", "saw", header_style="bold")
    table.add_column("ms", justify="right")
    for result in results:
        table.add_row(
            Text(result.verdict, style=_COLOURS[result.verdict]),
            Text(plain(result.case), overflow="fold"),
            Text(plain(result.expected)),
            Text(plain(result.seen)),
            f"{result.ms:.1f}",
        )
    return table
