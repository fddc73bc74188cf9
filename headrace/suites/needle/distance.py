"""How far answers lie apart: cached from cold, against the two cold runs from each other.

Engines are not deterministic, so answers need not be equal. What must hold is that the cache adds
nothing: over all prompts, cached answers differ from cold ones no more than cold from cold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Standard errors that the mean difference must lie above zero to be blamed on the cache.
_SURE = 2.0


def distance(one: str, other: str) -> float:
    """Return the share of characters to change, from 0 (equal) to 1: edit distance by length."""
    if one == other:
        return 0.0
    row = list(range(len(other) + 1))
    for number, left in enumerate(one, 1):
        above, row[0] = row[0], number
        for at, right in enumerate(other, 1):
            above, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, above + (left != right))
    return row[-1] / max(len(one), len(other))


@dataclass(frozen=True)
class Comparison:
    """Mean distances over prompts: cached from cold, and cold from cold.

    `error` is the standard error of their mean difference, None for fewer than two prompts.
    """

    cached: float
    cold: float
    error: float | None

    @property
    def farther(self) -> bool:
        """Cached answers differ from cold ones more than those from each other."""
        return self.error is not None and self.cached - self.cold > _SURE * self.error


def compare(pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Compare (cached from cold, cold from cold) of each prompt."""
    differences = [cached - cold for cached, cold in pairs]
    count = len(pairs)
    return Comparison(
        statistics.fmean(cached for cached, _ in pairs) if pairs else 0.0,
        statistics.fmean(cold for _, cold in pairs) if pairs else 0.0,
        statistics.stdev(differences) / math.sqrt(count) if count > 1 else None,
    )
