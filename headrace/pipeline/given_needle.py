"""Judges what `headrace needle` wrote about a live engine: of this image, whole, consistent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from headrace.pipeline.evidence import Case, Verdict
from headrace.pipeline.subject import UnprovedError
from headrace.pipeline.suite_cases import parse_cases, verdict_of
from headrace.suites.needle.evidence import STATES
from headrace.suites.needle.logs import FAULTS
from headrace.suites.needle.options import CELLS, PAGE, Options
from headrace.suites.needle.plan import plan
from headrace.suites.results import JUNIT, RESULTS

FILES = (RESULTS, CELLS, JUNIT, PAGE)
# What the suite judges over all prompts.
OVERALL = frozenset({"distance/L1", "distance/L2", *(f"log/{fault}" for fault in FAULTS)})
# Which a prompt of the kind that its name tells is not asked in, or in others.
BRIEF, FAULT = "-brief", "fault-"


class Run(BaseModel):
    """What each line of cells.jsonl says of the whole run; see `needle.report.about_run`."""

    model_config = ConfigDict(frozen=True, strict=True)
    endpoint: str
    private: bool
    # A plan is made of them, so that what nobody deploys would take all memory.
    ranks: int = Field(le=4096)
    chunk: int = Field(ge=1)
    prompts: int


class GivenCell(BaseModel):
    """What of a line of cells.jsonl is judged here."""

    model_config = ConfigDict(frozen=True)
    cell: str
    prompt: str
    state: str
    verdict: Verdict
    why: tuple[str, ...]
    found: str
    needle_ranks: tuple[int, ...]
    model: str
    image: str
    run: Run


def judge(files: Mapping[str, bytes], digest: str) -> tuple[Verdict, str, tuple[Case, ...]]:
    """Return verdict, detail and cases of a run: red with a red case, green if it is whole.

    Raises:
        UnprovedError: it is of another image or not readable, its files disagree, or it is not
            red and lacks a part.
    """
    cells, cases = _cells(files[CELLS]), _cases(files[RESULTS])
    for cell in cells:
        if not re.fullmatch(rf"(\S+@)?{digest}", cell.image):
            raise UnprovedError(
                f"{cell.cell}: expected image {digest}, found {cell.image or 'none'}"
            )
    run = _same_run(cells)
    _refuse_disagreement(cells, cases)
    verdict = verdict_of(cases)
    if verdict != "red":
        _refuse_partial(run, cells, cases)
    of = f"{len({cell.prompt for cell in cells})} prompts of {run.endpoint}, {cells[0].model}"
    return verdict, f"given results, a record and no signature: {of}", cases


def _cells(data: bytes) -> list[GivenCell]:
    cells = []
    try:
        for line in data.decode("utf-8").split("\n"):
            if line.strip():
                # Older runs have no such object, and say nothing about what is missing in them.
                cells.append(GivenCell.model_validate_json(line))
    except ValueError as broken:
        first = str(broken).splitlines()
        raise UnprovedError(
            f"{CELLS}: expected the cells of a run of this headrace, found line "
            f"{len(cells) + 1}: {' '.join(part.strip() for part in first[:3])}"
        ) from broken
    if not cells:
        raise UnprovedError(f"{CELLS}: expected the cells of a run, found none")
    return cells


def _cases(data: bytes) -> tuple[Case, ...]:
    try:
        return parse_cases(data.decode("utf-8"))
    except ValueError as broken:
        raise UnprovedError(
            f"{RESULTS}: expected cases, found {str(broken).splitlines()[0]}"
        ) from broken


def _same_run(cells: Sequence[GivenCell]) -> Run:
    if len({(cell.run, cell.model) for cell in cells}) != 1:
        raise UnprovedError(f"{CELLS}: expected the cells of one run, found several")
    run = cells[0].run
    if run.private or not run.endpoint:
        raise UnprovedError(
            f"{CELLS}: expected a run against an engine of the image, found one with --private"
        )
    return run


def _refuse_disagreement(cells: Sequence[GivenCell], cases: Sequence[Case]) -> None:
    said = {cell.cell: cell.verdict for cell in cells}
    found = {case.case: case.verdict for case in cases}
    if len(said) != len(cells) or len(found) != len(cases):
        raise UnprovedError(f"{RESULTS}, {CELLS}: expected each case once, found one twice")
    for name, verdict in said.items():
        if found.get(name) != verdict:
            raise UnprovedError(
                f"{name}: expected {verdict}, as {CELLS} says, found {found.get(name, 'none')} in "
                f"{RESULTS}"
            )
    for cell in cells:
        right = not cell.why and (cell.found == "right" or cell.state not in STATES)
        if (cell.verdict == "green" and not right) or cell.cell != f"{cell.prompt}/{cell.state}":
            raise UnprovedError(
                f"{cell.cell}: expected a cell that fits its verdict and name, found "
                f"{cell.verdict}, {cell.found}, {cell.prompt}/{cell.state}"
            )


def _refuse_partial(run: Run, cells: Sequence[GivenCell], cases: Sequence[Case]) -> None:
    """Raise UnprovedError for a run that left out a prompt, a state, a rank or a judgement."""
    if run.ranks < 2:
        raise UnprovedError(f"expected shards of two ranks or more, found --ranks {run.ranks}")
    asked: dict[str, set[str]] = {}
    for cell in cells:
        asked.setdefault(cell.prompt, set()).add(cell.state)
    # The borders and a needle for each rank, which --only and --no-seams can leave out.
    seams = [one.name for one in plan(Options("", ranks=run.ranks, chunk=run.chunk, lengths=()))]
    if missing := [name for name in seams if name not in asked]:
        raise UnprovedError(f"expected a whole run, found no prompt {missing[0]}")
    if len(asked) != run.prompts:
        raise UnprovedError(
            f"expected a whole run of {run.prompts} prompts, found {len(asked)} of them"
        )
    for name, states in asked.items():
        wanted = {"cold"} if name.startswith(FAULT) else set(STATES)
        wanted = {"cold", "L2"} if name.endswith(BRIEF) else wanted
        if missing := sorted(wanted - states):
            raise UnprovedError(f"{name}: expected a cell for state {missing[0]}, found none")
    held = {rank for cell in cells if cell.state == "L2" for rank in cell.needle_ranks}
    if missing_ranks := sorted(set(range(run.ranks)) - held):
        raise UnprovedError(f"expected a needle on rank {missing_ranks[0]} in L2, found none")
    others = {case.case for case in cases} - {cell.cell for cell in cells}
    if odd := sorted(others ^ OVERALL):
        what = "none" if odd[0] in OVERALL else "it"
        raise UnprovedError(
            f"{odd[0]}: expected {', '.join(sorted(OVERALL))} beside the cells, found {what}"
        )
