"""What is judged over all prompts: how far answers lie apart, and what the engine logged."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.console import say
from headrace.suites.needle.cells import Cell
from headrace.suites.needle.distance import compare, distance
from headrace.suites.needle.evidence import STATES
from headrace.suites.needle.logs import FAULTS, LogWatch
from headrace.suites.needle.options import SUITE
from headrace.suites.results import CaseResult, Verdict


def distances(cells: Sequence[Cell]) -> list[CaseResult]:
    """Judge, for each tier, whether its answers lie farther from cold ones than cold from cold."""
    said = {(cell.prompt.name, cell.state): cell.answer for cell in cells if cell.evidence}
    names = list(dict.fromkeys(cell.prompt.name for cell in cells))
    results = []
    for tier in ("L1", "L2"):
        whole = [name for name in names if all((name, state) in said for state in STATES)]
        if not whole:
            continue
        found = compare(
            [
                (distance(cold, said[name, tier]), distance(cold, said[name, "control"]))
                for name in whole
                for cold in [said[name, "cold"]]
            ]
        )
        results.append(
            CaseResult(
                SUITE, f"distance/{tier}",
                "answers no farther from cold ones than the two cold runs from each other",
                f"{found.cached:.1%} of the characters differ, between the cold runs "
                f"{found.cold:.1%}, over {len(whole)} prompts",
                "red" if found.farther else "green", 0.0,
            )
        )  # fmt: skip
    return results


def log_cases(logs: LogWatch) -> list[CaseResult]:
    """Judge the engine's log: a case for each kind of fault, void where no log was named."""
    results = []
    for fault in FAULTS:
        lines = logs.found[fault]
        verdict: Verdict = "red" if lines else "green"
        seen = f"{len(lines)}: {lines[0]}" if lines else "none"
        if not logs.paths:
            verdict, seen = "void", "no log was named; add --engine-log FILE"
        results.append(CaseResult(SUITE, f"log/{fault}", "none", seen, verdict, 0.0))
    if any(logs.found.values()):
        say(f"{SUITE}: the engine's log names faults; see the cases log/*")
    return results
