"""The cases that a suite wrote to its results.jsonl, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic_core import from_json

from headrace.errors import SuiteFailedError, SuiteVoidError
from headrace.pipeline.container import Outcome
from headrace.pipeline.evidence import Case, Verdict

EXPECTED_STATUS: Mapping[Verdict, int] = {
    "green": 0,
    "red": SuiteFailedError.exit_code,
    "void": SuiteVoidError.exit_code,
}


def judge_suite(outcome: Outcome, results: Path) -> tuple[Verdict, str, tuple[Case, ...]]:
    """Return verdict, detail and cases of a suite from its exit status and its results.

    Both must say the same: a status that its cases do not explain proves nothing.
    """
    try:
        cases = parse_cases(results.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "void", f"status {outcome.status}, no usable results: {outcome.last_line}", ()
    verdict = verdict_of(cases)
    if outcome.status == EXPECTED_STATUS[verdict]:
        return verdict, "" if cases else "no case ran", cases
    detail = f"status {outcome.status} does not fit its cases, which are {verdict}"
    return "red" if verdict == "red" else "void", f"{detail}: {outcome.last_line}", cases


def parse_cases(text: str) -> tuple[Case, ...]:
    """Return the cases of a results.jsonl.

    Raises:
        ValueError: a line is no case.
    """
    # A model's answer may hold signs that splitlines() takes for the end of a line.
    return tuple(_case(line) for line in text.split("\n") if line.strip())


def verdict_of(cases: Sequence[Case]) -> Verdict:
    """Return red if any case is red, else void if any is void or there is none, else green."""
    verdicts = {case.verdict for case in cases}
    return "green" if verdicts == {"green"} else "red" if "red" in verdicts else "void"


def _case(line: str) -> Case:
    # Unlike json's, it refuses what is nested without end, and half characters.
    value = from_json(line)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {line}")
    return Case.model_validate({key: value[key] for key in value if key != "suite"})
