"""What a new upstream release means for one patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["applies", "merged upstream", "partly merged", "conflicts"]


@dataclass(frozen=True)
class Verdict:
    """What the new release means for one patch.

    Attributes:
        outcome: "merged upstream" needs one of the first two signals; a regression test that
            passes is no more than a reason to look, and is told in `note`.
        reverse_applies: signal 1.
        three_way_leaves_nothing: signal 2.
        regression_passes: signal 3 on the unpatched new release; None if it was not run.
        regression_command: how to run it.
        merged_hunks: "patch file:line (upstream file)" of hunks that the new tree has already.
        conflicts: "upstream file:line" in the new tree with the earlier patches applied.
        note: one line for a person, "" if the rest says it all.
    """

    patch: str
    outcome: Outcome
    reverse_applies: bool
    three_way_leaves_nothing: bool
    regression_passes: bool | None
    regression_command: str
    merged_hunks: tuple[str, ...]
    conflicts: tuple[str, ...]
    note: str

    def __str__(self) -> str:
        test = {True: "passes", False: "fails", None: f"not run ({self.regression_command})"}
        parts = [
            f"{self.patch}: {self.outcome}",
            f"reverse applies: {'yes' if self.reverse_applies else 'no'}",
            f"three-way leaves nothing: {'yes' if self.three_way_leaves_nothing else 'no'}",
            f"regression test without it: {test[self.regression_passes]}",
        ]
        if self.merged_hunks:
            parts.append(f"merged hunks: {', '.join(self.merged_hunks)}")
        if self.conflicts:
            parts.append(f"conflicts: {', '.join(self.conflicts)}")
        return "; ".join([*parts, self.note] if self.note else parts)
