"""Ranks that each know only their own chunks agree on the prefix of the union: by the synchronous
rule, by the asynchronous one, and by definition. Wrong rules are found out.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.patches.lmcache.prefix_patterns import (
    MAX_CHUNKS,
    MAX_RANKS,
    Pattern,
    Rule,
    counterexample,
    random_pattern,
    shipped,
)

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_the_agreed_prefix_is_that_of_the_union": r"no rule by which ranks agree on a prefix",
}

PATTERNS = 100_000
# Enough for every mutant: the rarest counterexample, a lost last chunk, is in one of thirty.
MUTANT_PATTERNS = 2_000


def test_the_agreed_prefix_is_that_of_the_union() -> None:
    rule, draw = shipped(), random.Random(5545)
    kinds: Counter[str] = Counter()
    for _ in range(PATTERNS):
        pattern = random_pattern(draw)
        wrong = counterexample(rule, pattern)
        assert not wrong, wrong
        kinds.update(kinds_of(pattern))
    rare = [kind for kind in KINDS if kinds[kind] < PATTERNS // 100]
    assert not rare, f"the patterns hardly ever have {rare}"


@pytest.mark.patched_only(reason="stock has no such rule")
@settings(max_examples=2_000, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_hypothesis_finds_no_counterexample(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 16, 256]))
    prompt = data.draw(st.integers(0, MAX_CHUNKS * size + size - 1))
    chunks = prompt // size
    first, last = sorted(data.draw(st.tuples(st.integers(0, chunks), st.integers(0, chunks))))
    missing = data.draw(st.frozensets(st.integers(0, chunks - 1), max_size=8)) if chunks else set()
    world = data.draw(st.integers(1, MAX_RANKS))
    pattern = Pattern(world, size, prompt, frozenset(missing), first, last)
    assert not counterexample(shipped(), pattern)


def mutants(rule: Rule) -> dict[str, Rule]:
    def relative(pattern: Pattern, rank: int, begin: int, end: int) -> int:
        has = pattern.has(rank)
        starts = range(begin + rank * pattern.size, end, pattern.world * pattern.size)
        return next((start for start in starts if not has(start)), end)

    def below(pattern: Pattern, rank: int, begin: int, end: int) -> int:
        has, size = pattern.has(rank), pattern.size
        chunks = (start for start in range(begin, end, size) if start + size < end)
        owned = (start for start in chunks if start // size % pattern.world == rank)
        return next((start for start in owned if not has(start)), end)

    def lengths(
        change: Callable[[list[int], Pattern], list[int]],
    ) -> Callable[[Pattern, int], list[int]]:
        return lambda pattern, rank: change(rule.lengths(pattern, rank), pattern)

    return {
        "relative instead of absolute index": dataclasses.replace(rule, first=relative),
        "< for <=": dataclasses.replace(rule, first=below),
        "max instead of min": dataclasses.replace(
            rule, agree=lambda firsts, begin, end: max(begin, min(end, max(firsts)))
        ),
        "P not clamped": dataclasses.replace(rule, agree=lambda firsts, begin, end: min(firsts)),
        "0 instead of the first entry": dataclasses.replace(
            rule, lengths=lengths(lambda entries, _: [0, *entries[1:]])
        ),
        "end of prompt instead of N·S": dataclasses.replace(
            rule, lengths=lengths(lambda entries, pattern: [*entries[:-1], pattern.prompt])
        ),
    }


@pytest.mark.patched_only(reason="stock has no rule to change")
def test_every_planted_mutant_is_found() -> None:
    draw = random.Random(5553)
    patterns = [random_pattern(draw) for _ in range(MUTANT_PATTERNS)]
    rule = shipped()
    found = {
        name: sum(bool(counterexample(mutant, pattern)) for pattern in patterns)
        for name, mutant in mutants(rule).items()
    }
    assert len(found) == 6
    assert not [name for name, count in found.items() if not count], found


@pytest.mark.patched_only(reason="stock has no shares")
def test_shares_are_even_and_refuse_what_is_no_share() -> None:
    from lmcache.v1.pcp_shard.agreement import agreed_prefix, first_missing
    from lmcache.v1.pcp_shard.ownership import Shard

    for world in range(1, MAX_RANKS + 1):
        for chunks in (0, 1, world - 1, world, world + 1, MAX_CHUNKS):
            owned = Counter(
                rank
                for chunk in range(chunks)
                for rank in range(world)
                if Shard(rank, world, 256).owns_start(chunk * 256 + 255)
            )
            assert owned.total() == chunks
            assert max(owned.values(), default=0) == Shard(0, world, 256).most(chunks)
            assert all(
                Shard(0, world, 256).owner(chunk) == chunk % world for chunk in range(chunks)
            )
    for rank, world, size in [(1, 1, 256), (-1, 4, 256), (0, 0, 256), (0, 4, 0)]:
        with pytest.raises(ValueError, match="expected"):
            Shard(rank, world, size)
    for begin, end in [(1, 256), (0, 255), (512, 256), (-256, 0)]:
        with pytest.raises(ValueError, match="expected whole chunks of 256 tokens"):
            first_missing(Shard(0, 2, 256), begin, end, lambda start: True)
    with pytest.raises(ValueError):
        agreed_prefix([], 0, 256)


@pytest.mark.patched_only(reason="stock has no fingerprint")
def test_a_fingerprint_tells_every_difference() -> None:
    from lmcache.v1.pcp_shard.fingerprint import fingerprint

    chunks = [(0, 256, 7), (256, 512, -7), (512, 768, 2**255)]
    others = [
        [],
        chunks[:2],
        chunks[::-1],
        [(0, 256, 8), *chunks[1:]],
        [(0, 256, -7), (256, 512, 7), chunks[2]],
        [(256, 512, 7), (512, 768, -7), (768, 1024, 2**255)],
        [(0, 255, 7), *chunks[1:]],
        [*chunks[:2], (512, 768, 0), (768, 1024, 2**255)],
    ]
    prints = [fingerprint(each) for each in [chunks, *others]]
    assert {len(each) for each in prints} == {16}
    assert len(set(prints)) == len(prints)
    # The same in every process and on every machine: ranks compare it.
    assert fingerprint(iter(chunks)).hex() == FINGERPRINT


FINGERPRINT = "9857119bd02a763b1e82435ba4d838d1"

KINDS = [
    "ranks that own nothing",
    "a partial last chunk",
    "a call from the middle",
    "a call that ends early",
    "an empty call",
    "a gap with chunks behind it",
    "nothing missing",
    "hundreds of chunks",
]


def kinds_of(pattern: Pattern) -> list[str]:
    has = [
        pattern.chunks < pattern.world,
        pattern.prompt % pattern.size > 0,
        0 < pattern.first < pattern.last,
        pattern.last < pattern.chunks,
        pattern.first == pattern.last,
        bool(pattern.missing) and max(pattern.missing) < pattern.chunks - 1,
        not pattern.missing,
        pattern.chunks > 200,
    ]
    return [kind for kind, true in zip(KINDS, has, strict=True) if true]
