"""Proof of a state: an answer counts only if it came from the tier that its state names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.suites.needle.client import Answer, Hits
from headrace.suites.needle.prompt import Prompt
from headrace.suites.needle.shards import Counters

State = Literal["cold", "L1", "L2", "control"]
STATES: tuple[State, ...] = ("cold", "L1", "L2", "control")


class Doubt(NamedTuple):
    """Why a state is not proved, and the ranks whose shards are to blame for it."""

    text: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """What endpoint, engine and servers counted for one answer.

    Attributes:
        prompt_tokens, cached: the endpoint's usage.
        gets, misses: GET commands of each server while the request ran, and reads that found no
            key.
        own_hits, connector_hits: tokens that the engine found in its own prefix cache, and
            that its connector found; None if it does not say.
        computed_anew: tokens among `cached` whose load failed, so that they were computed; None
            if no log of the engine tells.
        seconds: that the answer took.
    """

    prompt_tokens: int
    cached: int
    gets: tuple[int, ...]
    misses: tuple[int, ...]
    own_hits: int | None
    connector_hits: int | None
    computed_anew: int | None
    seconds: float

    @property
    def loaded(self) -> int:
        """Tokens that came from a cache, as far as is known."""
        return self.cached - (self.computed_anew or 0)


def evidence_of(
    answer: Answer,
    counted: Sequence[Counters],
    before: Hits | None,
    after: Hits | None,
    computed_anew: int | None,
) -> Evidence:
    """Return the evidence of one request, from the counters around it."""
    known = before is not None and after is not None
    return Evidence(
        answer.prompt_tokens, answer.cached or 0,
        tuple(each.gets for each in counted), tuple(each.misses for each in counted),
        after.own - before.own if known and after and before else None,
        after.connector - before.connector if known and after and before else None,
        computed_anew, answer.seconds,
    )  # fmt: skip


def unproved(
    state: State, prompt: Prompt, seen: Evidence, expected_gets: Sequence[int]
) -> list[Doubt]:
    """Return why `seen` does not prove that the answer came from `state`; empty if it does.

    Args:
        expected_gets: chunks of the prompt on each server; empty if no server is known.
    """
    reasons = []
    if seen.prompt_tokens != prompt.length:
        reasons.append(
            Doubt(
                f"expected {prompt.length} tokens of prompt, "
                f"the endpoint counted {seen.prompt_tokens}"
            )
        )
    hit = prompt.whole_chunks * prompt.chunk
    if state in ("cold", "control"):
        reasons += _not_cold(state, seen)
    elif seen.cached not in _full_hits(prompt):
        reasons.append(_short(prompt, seen.cached, hit))
    else:
        reasons += _failed_loads(state, seen)
    if not expected_gets:
        if state == "L2":
            reasons.append(Doubt("no server is known; name them with --valkey"))
        return reasons
    wanted = tuple(expected_gets) if state == "L2" else (0,) * len(expected_gets)
    if seen.gets != wanted:
        reasons += _other_gets(state, seen.gets, wanted)
    if state == "L1" and hit:
        reasons += _not_l1(seen)
    return reasons


def _full_hits(prompt: Prompt) -> tuple[int, ...]:
    """Of a prompt that is cached to its end, the last token is computed all the same."""
    hit = prompt.whole_chunks * prompt.chunk
    return (hit - 1, hit) if hit == prompt.length else (hit,)


def _not_cold(state: State, seen: Evidence) -> list[Doubt]:
    if not seen.cached:
        return []
    advice = (
        "an earlier run left it; choose another --seed, or --tag TEXT"
        if state == "cold"
        else "the cache takes no notice of the salt"
    )
    return [Doubt(f"expected no cached tokens, found {seen.cached}: {advice}")]


def _short(prompt: Prompt, cached: int, hit: int) -> Doubt:
    if cached > hit:
        return Doubt(f"expected {hit} cached tokens, found {cached}: more than whole chunks")
    if not cached:
        return Doubt(f"expected {hit} cached tokens, found none: computed anew", (0,))
    index = cached // prompt.chunk
    rank = index % prompt.ranks
    return Doubt(
        f"expected {hit} cached tokens, found {cached}: chunk {index} of rank {rank} is the first "
        "one missing",
        (rank,),
    )


def _failed_loads(state: State, seen: Evidence) -> list[Doubt]:
    """Of a prompt that counts as cached: what was promised and could not be loaded."""
    reasons = []
    if seen.computed_anew:
        reasons.append(
            Doubt(
                f"a load failed: {seen.computed_anew} of {seen.cached} tokens that count as cached "
                "were computed anew"
            )
        )
    if state == "L2":
        reasons += [
            Doubt(f"shard {rank}: {count} reads found no key", (rank,))
            for rank, count in enumerate(seen.misses)
            if count
        ]
    return reasons


def _other_gets(state: State, gets: Sequence[int], wanted: Sequence[int]) -> list[Doubt]:
    if state == "L2" and not any(gets):
        return [
            Doubt(
                "no GET on any server: nothing came from L2; the restart left L1, the keys are "
                "gone, or the engine uses other servers"
            )
        ]
    if len(gets) == 1:
        return [Doubt(f"expected {wanted[0]} GETs, found {gets[0]}")]
    return [
        Doubt(f"shard {rank}: expected {want} GETs, found {found}", (rank,))
        for rank, (found, want) in enumerate(zip(gets, wanted, strict=True))
        if found != want
    ]


def _not_l1(seen: Evidence) -> list[Doubt]:
    if seen.own_hits is None or seen.connector_hits is None:
        return [
            Doubt(
                "the endpoint has no /metrics of vLLM: L1 cannot be told from the engine's own "
                "prefix cache"
            )
        ]
    if seen.own_hits:
        return [
            Doubt(
                f"{seen.own_hits} tokens came from the engine's own prefix cache; start it with "
                "--no-enable-prefix-caching, or with VLLM_SERVER_DEV_MODE=1"
            )
        ]
    if not seen.connector_hits and seen.cached:
        return [Doubt("the engine's connector found nothing")]
    return []
