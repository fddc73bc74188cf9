"""The header fields of a patch, the first paragraph after its subject, and their grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.pipeline.problem import Problem

GRAMMAR = {
    "Origin": (r"headrace|https://\S+", "'headrace' or the https address of a pull request"),
    "Forwarded": (r"no|not-needed|https://\S+", "'no', 'not-needed' or an https address"),
    "Upstream-Status": (
        r"Submitted \[https://\S+\]|Backport \[[^\[\]]+\]|Inappropriate \[[^\[\]]+\]",
        "'Submitted [https address]', 'Backport [version]' or 'Inappropriate [reason]'",
    ),
    "Applies-To": (r"[A-Za-z0-9._-]+ [A-Za-z0-9.+!_-]+", "'PROJECT VERSION'"),
    "Mode": (
        r"in-process|multi-process|native client|kernel",
        "'in-process', 'multi-process', 'native client' or 'kernel'",
    ),
    "Regression-Test": (
        r"tests(/[A-Za-z0-9_-]+)+\.py(::[A-Za-z_]\w*)*::test_\w+",
        "'tests/….py::test_…'",
    ),
}
REPEATABLE = "Regression-Test"

_FIELD = re.compile(r"([A-Za-z][A-Za-z-]*): (.*)")


@dataclass(frozen=True)
class Field:
    """The value of a header field and its line in the file, from 1."""

    name: str
    value: str
    line: int


def fields_of(body: str, first_line: int) -> list[Field]:
    """Return the header fields in the first paragraph of `body`, which starts at `first_line`."""
    fields = []
    for number, text in enumerate(body.split("\n"), first_line):
        if not text.strip():
            break
        found = _FIELD.fullmatch(text)
        fields.append(Field(found[1], found[2], number) if found else Field("", text, number))
    return fields


def field_problems(
    where: str, subject_line: int, fields: Sequence[Field], run: str
) -> list[Problem]:
    """Return what is wrong with the fields of the patch file `where`; `run` mends it."""
    if not any(field.name in GRAMMAR for field in fields):
        wanted = f"{', '.join(GRAMMAR)} in the first paragraph after the subject"
        return [Problem(where, subject_line, wanted, "none of these fields", run)]
    problems = []
    for name in GRAMMAR:
        lines = [field.line for field in fields if field.name == name]
        if not lines:
            at = fields[0].line if fields else subject_line
            wanted = f"the field '{name}:' in the first paragraph after the subject"
            problems.append(Problem(where, at, wanted, "none", run))
        elif len(lines) > 1 and name != REPEATABLE:
            problems.append(Problem(where, lines[1], f"'{name}:' once", f"{len(lines)}", run))
    for field in fields:
        if field.name not in GRAMMAR:
            wanted = f"one of {', '.join(GRAMMAR)}"
            problems.append(
                Problem(where, field.line, wanted, repr(field.name or field.value), run)
            )
        elif not re.fullmatch(GRAMMAR[field.name][0], field.value):
            wanted = f"'{field.name}:' to be {GRAMMAR[field.name][1]}"
            problems.append(Problem(where, field.line, wanted, repr(field.value), run))
    return problems
