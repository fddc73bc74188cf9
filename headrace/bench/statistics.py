"""Ratios of paired measurements, with a bootstrap interval and a verdict."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "fail", "open"]

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median with the bounds of its bootstrap interval at `CONFIDENCE`."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Round:
    """Pairs that were measured by the same two processes, in seconds; one entry a pair."""

    stock: Sequence[float]
    patched: Sequence[float]

    def ratios(self) -> list[float]:
        """Return patched speed over stock speed for each pair.

        Raises:
            ValueError: no pair, halves of different length, or a time that is not positive.
        """
        if not self.stock or len(self.stock) != len(self.patched):
            raise ValueError(
                f"expected pairs, got {len(self.stock)} stock and {len(self.patched)} patched"
            )
        if min(*self.stock, *self.patched) <= 0:
            raise ValueError("a measured time is not positive")
        return [stock / patched for stock, patched in zip(self.stock, self.patched, strict=True)]


def paired_ratio(rounds: Sequence[Round]) -> Interval:
    """Return patched speed over stock speed: the median of all pairs' own ratios.

    Rounds are resampled whole. What disturbs the machine disturbs the halves of a pair alike and
    cancels; what is left is alike within a round (its processes' memory, its neighbours), and
    pairs drawn one by one would make the interval narrower than it is. The same input gives the
    same interval.

    Raises:
        ValueError: no round, or one that is none.
    """
    if not rounds:
        raise ValueError("expected rounds of pairs, got none")
    ratios = [one.ratios() for one in rounds]
    draw = random.Random(0)  # noqa: S311 - resampling, not secrets
    medians = sorted(
        statistics.median(ratio for one in draw.choices(ratios, k=len(ratios)) for ratio in one)
        for _ in range(RESAMPLES)
    )
    tail = (1 - CONFIDENCE) / 2
    return Interval(
        statistics.median(ratio for one in ratios for ratio in one),
        medians[int(tail * RESAMPLES)],
        medians[int((1 - tail) * RESAMPLES) - 1],
    )


def judge(interval: Interval, floor: float) -> Verdict:
    """Return "pass" if the whole interval is at least `floor`, "fail" if none of it is."""
    if interval.low >= floor:
        return "pass"
    return "fail" if interval.high < floor else "open"
