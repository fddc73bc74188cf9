"""Which ranks hold which chunks, the prefix that follows by definition, and what a rule says."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_RANKS = 16
MAX_CHUNKS = 800


@dataclass(frozen=True)
class Pattern:
    """A prompt whose chunks are spread over ranks, some of them lost, and one call on it.

    Attributes:
        world: ranks of the group.
        size: tokens of a chunk.
        prompt: tokens of the prompt; the last chunk may be partial and does not exist.
        missing: the chunks that their owner lost. Nobody else ever holds a chunk.
        first: the first chunk of a call that does not cover the whole prompt.
        last: the chunk after its last.
    """

    world: int
    size: int
    prompt: int
    missing: frozenset[int]
    first: int
    last: int

    @property
    def chunks(self) -> int:
        return self.prompt // self.size

    def has(self, rank: int) -> Callable[[int], bool]:
        """Return whether `rank` holds the chunk that starts at a token."""
        world, size, missing = self.world, self.size, self.missing

        def held(start: int) -> bool:
            chunk, offset = divmod(start, size)
            return not offset and chunk % world == rank and chunk not in missing

        return held

    def prefix(self, first: int, last: int) -> int:
        """Return the start of the first missing chunk of the union; the call's end if none is."""
        return min((c for c in self.missing if first <= c < last), default=last) * self.size


@dataclass(frozen=True)
class Rule:
    """How ranks come to a prefix, each step to be replaced by a wrong one.

    Attributes:
        first: a rank's report on the call over the tokens [begin, end).
        agree: the prefix from all reports.
        lengths: what a rank answers to a lookup, by how many of its chunks it found.
    """

    first: Callable[[Pattern, int, int, int], int]
    agree: Callable[[Sequence[int], int, int], int]
    lengths: Callable[[Pattern, int], list[int]]


def shipped() -> Rule:
    """Return the rule of the LMCache under test."""
    found = importlib.util.find_spec("lmcache.v1.pcp_shard")
    assert found, "this LMCache has no rule by which ranks agree on a prefix"
    from lmcache.v1.pcp_shard.agreement import agreed_prefix, first_missing, prefetch_lengths
    from lmcache.v1.pcp_shard.ownership import Shard

    return Rule(
        first=lambda pattern, rank, begin, end: first_missing(
            Shard(rank, pattern.world, pattern.size), begin, end, pattern.has(rank)
        ),
        agree=agreed_prefix,
        lengths=lambda pattern, rank: prefetch_lengths(
            Shard(rank, pattern.world, pattern.size), pattern.chunks
        ),
    )


def counterexample(rule: Rule, pattern: Pattern) -> str:
    """Return where `rule` says something else than the definition, "" if nowhere."""
    size, ranks = pattern.size, range(pattern.world)
    begin, end, whole = pattern.first * size, pattern.last * size, pattern.chunks * size
    reports = [rule.first(pattern, rank, begin, end) for rank in ranks]
    of_prompt = [rule.first(pattern, rank, 0, whole) for rank in ranks]
    answers = [_answer(pattern, rank, rule.lengths(pattern, rank)) for rank in ranks]
    wanted, prefix = pattern.prefix(pattern.first, pattern.last), pattern.prefix(0, pattern.chunks)
    said = {
        "a call": (rule.agree(reports, begin, end), wanted),
        "the whole prompt": (rule.agree(of_prompt, 0, whole), prefix),
        "the asynchronous lookup": (min(answers), prefix),
        # What was promised for the prompt is loaded by a call that may be shorter.
        "a call on what was looked up": (
            rule.agree(answers, begin, end),
            max(begin, min(prefix, end)),
        ),
    }
    wrong = [
        f"{what}: {found}, not {want}" for what, (found, want) in said.items() if found != want
    ]
    return f"{'; '.join(wrong)} on {pattern}" if wrong else ""


def random_pattern(draw: random.Random, sizes: Sequence[int] = (1, 16, 256)) -> Pattern:
    """Return a pattern; small prompts come often, so that ranks which own nothing do too."""
    world, size = draw.randint(1, MAX_RANKS), draw.choice(sizes)
    chunks = draw.randint(0, MAX_CHUNKS if draw.random() < 0.08 else 2 * world)
    prompt = chunks * size + draw.randrange(size)
    first, last = sorted((draw.randint(0, chunks), draw.randint(0, chunks)))
    return Pattern(world, size, prompt, _lost(draw, world, chunks), first, last)


def _answer(pattern: Pattern, rank: int, lengths: list[int]) -> int:
    # As the storage manager: how many of the rank's own chunks it found as a prefix is the index.
    owned = range(rank, pattern.chunks, pattern.world)
    found = next((i for i, chunk in enumerate(owned) if chunk in pattern.missing), len(owned))
    return lengths[found]


def _lost(draw: random.Random, world: int, chunks: int) -> frozenset[int]:
    every = range(chunks)
    kind = draw.randrange(6)
    if kind == 0:
        return frozenset()
    if kind == 1:
        return frozenset(draw.sample(every, min(chunks, 1)))
    if kind == 2:
        return frozenset(draw.sample(every, min(chunks, 3)))
    if kind == 3:
        # One rank came up empty.
        return frozenset(range(draw.randrange(world), chunks, world))
    if kind == 4:
        # A prefix survives, as after eviction from the end.
        return frozenset(range(draw.randint(0, chunks), chunks))
    return frozenset(c for c in every if draw.random() < 0.5)
