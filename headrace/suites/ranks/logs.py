"""The ranks' logs: where each lies, and how a message speaks of it."""

from __future__ import annotations

import sys
from pathlib import Path

_CHARACTERS = 6000


class RankLogs:
    """A log for each rank in one folder.

    Args:
        quoted: a message ends with the end of a rank's log, for a test; else it is one line that
            names the log.
    """

    def __init__(self, folder: Path, *, quoted: bool) -> None:
        self._folder = folder
        self._quoted = quoted

    def path(self, rank: int) -> Path:
        """Return where a rank's log is."""
        return self._folder / f"rank-{rank}.log"

    def text(self, rank: int) -> str:
        """Return what a rank has printed, "" if it never started."""
        path = self.path(rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def see(self, rank: int) -> str:
        """Return the end of a message about a rank."""
        return f"\n{self._tail(rank)}" if self._quoted else f"; see {self.path(rank)}"

    def print_stacks(self, world: int) -> None:
        """Print the ends of all ranks' logs, where stacks were dumped, if logs are quoted."""
        for rank in range(world if self._quoted else 0):
            sys.stderr.write(f"--- rank {rank}, the stacks of all threads:\n{self._tail(rank)}\n")

    def see_silent(self, rank: int) -> str:
        """Return the end of a message about a rank whose stacks `print_stacks` has printed."""
        return "" if self._quoted else self.see(rank)

    def _tail(self, rank: int) -> str:
        return self.text(rank)[-_CHARACTERS:]
