"""One thing that is wrong with a file of the checkout, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import SeriesError


@dataclass(frozen=True, order=True)
class Problem:
    """A complaint that a person can act on; `str()` gives its one line.

    Attributes:
        file: path relative to the checkout, as it is printed.
        line: from 1.
        run: what to do next; a command where there is one.
    """

    file: str
    line: int
    expected: str
    found: str
    run: str

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: expected {self.expected}, found {self.found}; run {self.run}"
        )


class ProblemsError(SeriesError):
    """One or more problems that stop a command before it has written anything."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def rewrite_with(project: str) -> str:
    """Return the commands that write the series of `project` anew from its commits."""
    return f"`python build.py edit {project}`, then `python build.py refresh {project}`"
