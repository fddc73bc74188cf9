"""Writes what was found: JSONL for a machine, JUnit for a pipeline, one page for a person."""

from __future__ import annotations

import json
from typing import Any

from headrace.console import disk_error
from headrace.suites.needle.options import CELLS, PAGE, SUITE, Options
from headrace.suites.needle.page import page
from headrace.suites.needle.plan import plan
from headrace.suites.needle.run import Outcome
from headrace.suites.results import write_results


def write_report(outcome: Outcome) -> None:
    """Write results.jsonl, junit.xml, cells.jsonl (evidence of each cell) and report.html.

    Raises:
        MachineError: the folder cannot be written.
    """
    options = outcome.options
    about = {
        "endpoint": options.endpoint, "model": outcome.model, "image": options.image,
        "seed": str(options.seed), "ranks": str(options.ranks), "chunk": str(options.chunk),
    }  # fmt: skip
    write_results(options.out, SUITE, outcome.results, about)
    run = about_run(options)
    lines = [
        json.dumps({**cell.record(options, outcome.model), "run": run}, ensure_ascii=False)
        for cell in outcome.cells
    ]
    try:
        for name, text in ((CELLS, "\n".join([*lines, ""])), (PAGE, page(outcome))):
            partial = options.out / f"{name}.partial"
            partial.write_text(text, encoding="utf-8")
            partial.replace(options.out / name)
    except OSError as failure:
        raise disk_error(failure, options.out) from failure


def about_run(options: Options) -> dict[str, Any]:
    """Return what tells a whole run from a part of one; `prompts` counts the whole plan's."""
    return {
        "endpoint": options.endpoint, "private": options.private, "ranks": options.ranks,
        "chunk": options.chunk, "prompts": len(plan(options)),
    }  # fmt: skip
