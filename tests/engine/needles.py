"""The prompts of the real engine's tests: where each needle lies, and which rank owns it."""

from __future__ import annotations

from headrace.suites.needle_prompt import NeedlePrompt, needle_prompt
from tests.engine.settings import CHUNK, RANKS


def needle(seed: int, length: int, chunk: int) -> NeedlePrompt:
    """Return a prompt of `length` tokens whose code lies in the middle of chunk `chunk`."""
    return needle_prompt(seed, length, chunk * CHUNK + CHUNK // 2)


def chunks(prompt: NeedlePrompt) -> int:
    """Return the number of whole chunks: what is stored of it."""
    return len(prompt.tokens) // CHUNK


# Lengths: a number of whole chunks, and with a part of one; one that leaves a rank without a chunk;
# an odd number of chunks. A needle in a chunk of each rank, and one across a border of chunks.
SOUND = {
    "rank 0's chunk": needle(1, 1024, 2),
    "rank 1's chunk": needle(2, 1100, 3),
    "across a border": needle_prompt(3, 1300, 4 * CHUNK - 6),
    "one chunk": needle(4, 300, 0),
    "last chunk": needle(5, 2048, 7),
    "long": needle(6, 4000, 9),
}
# Pairs whose needles lie in a chunk of the same rank.
SWAPPED = {rank: (f"swapped, rank {rank}", f"swapped, rank {rank}, other") for rank in range(RANKS)}
# Each of these is spoilt once, on rank 1's server where there is one.
SPOILT = ("deleted", "shortened", "silent", "stopped")
ABORTED, GONE = "aborted in the load", "gone"
PROMPTS = {
    **SOUND,
    **{
        name: needle(10 * rank + number, 1024, 2 + rank)
        for rank, pair in SWAPPED.items()
        for number, name in enumerate(pair, start=20)
    },
    **{
        name: needle(number, 1300, 3)
        for number, name in enumerate((*SPOILT, ABORTED, GONE), start=50)
    },
}
