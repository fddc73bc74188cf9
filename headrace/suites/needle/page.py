"""The report as one page without any other file: what a heatmap and a table need, and no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2

from headrace.suites.needle.cells import Cell
from headrace.suites.needle.evidence import STATES
from headrace.suites.needle.run import Outcome
from headrace.suites.results import Verdict, overall

TEMPLATE = "page.html.j2"
_BANDS = tuple(range(0, 100, 10))
# The worst first.
MARKS: Sequence[tuple[str, Verdict, str]] = (
    ("W", "red", "another code"),
    ("M", "red", "no code"),
    ("!", "red", "right code, wrong otherwise"),
    ("?", "void", "not proved to come from there, which counts as a failure"),
    ("✓", "green", "right and proved"),
)
_Z = 1.96


@dataclass(frozen=True)
class Square:
    """One field of a heatmap: the cells of a length and a band of depths. No verdict: none.

    `mark` tells what is wrong without the colour: that of the worst cell.
    """

    verdict: Verdict | None
    mark: str
    title: str


def page(outcome: Outcome) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    cells = outcome.cells
    lengths = sorted({cell.prompt.length for cell in cells})
    ranked = [cell for cell in cells if cell.prompt.wanted.kind in ("rank", "border")]
    return environment.from_string(text).render(
        outcome=outcome,
        verdict=overall(outcome.results),
        headline=headline(outcome),
        summaries=[(state, *summary(of_state(cells, state))) for state in STATES],
        lengths=lengths,
        marks=MARKS,
        maps=[(state, heatmap(of_state(cells, state), lengths)) for state in STATES],
        states=STATES,
        ranked=[
            (name, [next(iter(of_prompt(of_state(ranked, state), name)), None) for state in STATES])
            for name in dict.fromkeys(cell.prompt.name for cell in ranked)
        ],
        faults=[cell for cell in cells if cell.state not in STATES],
        bad=[cell for cell in cells if cell.verdict != "green"],
    )


def headline(outcome: Outcome) -> str:
    """Return the verdict in one sentence, with the ranks to blame."""
    results = outcome.results
    verdict = overall(results)
    right = sum(cell.found == "right" for cell in outcome.cells)
    told = f"{verdict}: {right} of {len(outcome.cells)} answers hold the right code"
    for word in ("red", "void"):
        count = sum(result.verdict == word for result in results)
        told += f", {count} of {len(results)} cases {word}" if count else ""
    wrong = sum(cell.found == "wrong" for cell in outcome.cells)
    told += f", {wrong} with another code" if wrong else ""
    ranks = sorted({rank for cell in outcome.cells for rank in cell.ranks})
    if ranks:
        told += f"; to blame: rank {', '.join(map(str, ranks))}"
    return told


def summary(cells: Sequence[Cell]) -> tuple[int, int, float, float]:
    """Return green cells, all cells, and Wilson's interval of the share that is green."""
    count, green = len(cells), sum(cell.verdict == "green" for cell in cells)
    if not count:
        return 0, 0, 0.0, 1.0
    share, z2 = green / count, _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return green, count, max(0.0, middle - half), min(1.0, middle + half)


def heatmap(cells: Sequence[Cell], lengths: Sequence[int]) -> list[tuple[int, list[Square]]]:
    """Return a row for each band of depths, from the start of the prompt to its end.

    Its squares are those of `lengths`, in that order.
    """
    return [
        (
            band,
            [
                _square([cell for cell in cells if cell.prompt.length == length and
                         band <= min(cell.prompt.depth, 99) < band + 10])
                for length in lengths
            ],
        )
        for band in _BANDS
    ]  # fmt: skip


def _square(cells: Sequence[Cell]) -> Square:
    if not cells:
        return Square(None, "", "")
    seen = [_mark(cell) for cell in cells]
    mark, verdict = next((mark, verdict) for mark, verdict, _ in MARKS if mark in seen)
    told = [
        f"{cell.name} at {cell.prompt.depth} %: {cell.verdict}: {cell.seen()}" for cell in cells
    ]
    return Square(verdict, mark, "\n".join(told))


def _mark(cell: Cell) -> str:
    if cell.verdict != "red":
        return "✓" if cell.verdict == "green" else "?"
    return {"wrong": "W", "missing": "M", "right": "!"}[cell.found]


def of_state(cells: Sequence[Cell], state: str) -> list[Cell]:
    """Return the cells of one state."""
    return [cell for cell in cells if cell.state == state]


def of_prompt(cells: Sequence[Cell], name: str) -> list[Cell]:
    """Return the cells of one prompt."""
    return [cell for cell in cells if cell.prompt.name == name]
