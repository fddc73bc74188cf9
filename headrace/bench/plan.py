"""How much the RESP bench measures: in full, or just enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass

BIG = 12_392_448
SMALL = 1_572_864


@dataclass(frozen=True)
class Plan:
    """Sizes in bytes, times in seconds.

    Attributes:
        counts: values of each size in one batch; three copies of a batch exist at a time (one a
            build and the server's), so `working_set` says what that comes to.
        pairs: the fewest pairs of one row.
        most_pairs: the most, for a row that stays undecided, and `row_seconds` its time.
        floor: the least patched / stock speed that passes.
        judged: False for a run too short to be held to the floor.
        blocking_seconds: the engine's own limit for a get, which is what a stall lasts.
    """

    counts: dict[int, int]
    threads: tuple[int, ...]
    pairs: int
    most_pairs: int
    row_seconds: float
    misses: int
    blocking_seconds: float
    judged: bool
    floor: float = 0.97

    def working_set(self) -> int:
        """Return the most bytes of values that exist at a time, in all processes together."""
        return 3 * max(size * count for size, count in self.counts.items())


FULL = Plan(
    counts={BIG: 8, SMALL: 64},
    threads=(1, 2, 4, 8),
    pairs=30,
    most_pairs=150,
    row_seconds=40,
    misses=3,
    blocking_seconds=10,
    judged=True,
)
QUICK = Plan(
    counts={BIG: 2, SMALL: 8},
    threads=(1, 8),
    pairs=5,
    most_pairs=5,
    row_seconds=40,
    misses=1,
    blocking_seconds=2,
    judged=False,
)
