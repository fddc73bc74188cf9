"""Where a needle lies: its first token, from the layout of the prompt and of its chunks."""

from __future__ import annotations

import random

from headrace.suites.needle.plan import Wanted


def place(
    wanted: Wanted, rng: random.Random, *, first: int, end: int, size: int, chunk: int, ranks: int
) -> int:
    """Return the token at which the needle begins.

    Args:
        first: first token of the body; the opening lies before it.
        end: token after the body; the question begins there.
        size: tokens of the needle.
        chunk: tokens of a chunk.
        ranks: W; chunk c belongs to rank c mod W.

    Raises:
        ValueError: no place fits.
    """
    last = end - size
    if wanted.kind in ("depth", "fault", "spoilt"):
        if last < first:
            raise ValueError(f"no room for a needle of {size} tokens in {wanted.length}")
        return first + round(wanted.value / 100 * (last - first))
    whole = wanted.length // chunk
    if wanted.kind == "border":
        before = size // 2
        starts = [border * chunk - before for border in range(1, whole)]
        starts = [start for start in starts if first <= start <= last]
    else:
        starts = [
            at
            for index in range(wanted.value, whole, ranks)
            for low, high in [(max(first, index * chunk), min(last, (index + 1) * chunk - size))]
            if low <= high
            for at in [rng.randint(low, high)]
        ]
    if not starts:
        raise ValueError(f"no place for {wanted.name} in {wanted.length} tokens")
    return rng.choice(starts)
