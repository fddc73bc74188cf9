"""How a pool's command can fail: a rank hangs, ends, or raises."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import SuiteVoidError


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
