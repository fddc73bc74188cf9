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


def paired_ratio(stock_seconds: Sequence[float], patched_seconds: Sequence[float]) -> Interval:
    """Return patched speed over stock speed: the median of the pairs' own ratios.

    The pair is resampled, not its halves: what disturbs the machine disturbs neighbours in time
    alike, and cancels within a pair. The same input gives the same interval.

    Raises:
        ValueError: no pair, halves of different length, or a time that is not positive.
    """
    if not stock_seconds or len(stock_seconds) != len(patched_seconds):
        raise ValueError(
            f"expected pairs, got {len(stock_seconds)} stock and {len(patched_seconds)} patched"
        )
    if min(*stock_seconds, *patched_seconds) <= 0:
        raise ValueError("a measured time is not positive")
    ratios = [
        stock / patched for stock, patched in zip(stock_seconds, patched_seconds, strict=True)
    ]
    draw = random.Random(0)  # noqa: S311 - resampling, not secrets
    medians = sorted(
        statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    tail = (1 - CONFIDENCE) / 2
    return Interval(
        statistics.median(ratios),
        medians[int(tail * RESAMPLES)],
        medians[int((1 - tail) * RESAMPLES) - 1],
    )


def judge(interval: Interval, floor: float) -> Verdict:
    """Return "pass" if the whole interval is at least `floor`, "fail" if none of it is."""
    if interval.low >= floor:
        return "pass"
    return "fail" if interval.high < floor else "open"
