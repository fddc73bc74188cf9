"""Which prompts are asked: every length with its depths, every border, every rank."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from headrace.errors import ConfigurationError
from headrace.suites.needle.options import Options

# Above this many tokens a model with sparse attention picks; the two sides take other paths.
TOP_K = 2048

Kind = Literal["depth", "rank", "border", "fault", "spoilt"]


@dataclass(frozen=True)
class Wanted:
    """One prompt of the plan.

    Attributes:
        name: unique; what `--only` matches.
        length: tokens.
        kind, value: where the needle lies. "depth": `value` percent of the way; "rank": inside a
            chunk that rank `value` owns; "border": across one; "fault": halfway, for the fault
            arm that `name` ends with; "spoilt": halfway, for the negative control.
        number: its place in the whole plan, which decides its codes.
        brief: asked cold and from L2 only.
    """

    name: str
    length: int
    kind: Kind
    value: int
    number: int
    brief: bool = False


def plan(options: Options) -> list[Wanted]:
    """Return the whole plan; `chosen` narrows it, so that a prompt stays what it is."""
    # Depths by chance; no secret.
    rng = random.Random(f"{options.seed} depths")  # noqa: S311  # no secret
    found: dict[str, tuple[int, Kind, int]] = {}
    for length in options.lengths:
        for depth in options.depths or (rng.randint(0, 100),):
            found[f"{length}-at-{depth}"] = (length, "depth", depth)
    if options.seams:
        for length in seam_lengths(options):
            found.setdefault(f"{length}-at-50", (length, "depth", 50))
        for rank in range(options.ranks):
            found[f"rank-{rank}"] = (rounds(options), "rank", rank)
        found["border"] = (rounds(options), "border", 0)
    for arm in options.faults:
        found[f"fault-{arm}"] = (rounds(options), "fault", 50)
    brief = {f"{length}-brief": length for length in options.brief}
    found |= {name: (length, "depth", rng.randint(0, 100)) for name, length in brief.items()}
    if options.private:
        found |= {f"spoilt-{which}": (rounds(options), "spoilt", 50) for which in "ab"}
    return [
        Wanted(name, *what, number=number, brief=name in brief)
        for number, (name, what) in enumerate(found.items())
    ]


def chosen(wanted: Sequence[Wanted], only: Sequence[str]) -> list[Wanted]:
    """Return the prompts whose names match any pattern; all without a pattern.

    Raises:
        ConfigurationError: a pattern matches nothing.
    """
    for pattern in only:
        if not any(fnmatchcase(each.name, pattern) for each in wanted):
            raise ConfigurationError(
                f"--only {pattern!r}: expected a pattern of prompt names, it matches none of "
                f"{len(wanted)}; see headrace needle ENDPOINT --list"
            )
    return [
        each
        for each in wanted
        if not only or any(fnmatchcase(each.name, pattern) for pattern in only)
    ]


def seam_lengths(options: Options) -> list[int]:
    """Return the lengths one below, at and one above a chunk, the top k, and a chunk a rank."""
    seams = {options.chunk, TOP_K, options.ranks * options.chunk}
    return sorted({seam + off for seam in seams for off in (-1, 0, 1)})


def rounds(options: Options) -> int:
    """Return the length that gives each rank two whole chunks, with a part of one behind."""
    return 2 * options.ranks * options.chunk + options.chunk // 2
