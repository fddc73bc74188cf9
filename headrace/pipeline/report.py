"""The report on one image: what was proved, and whether that is enough to publish it.

A report is a record, not a signature: it carries a hash over its own content, which shows a file
that was cut off or edited by hand, and which anybody who means to deceive can recompute.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from headrace.errors import ConfigurationError, PublishError
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import write_atomically

SCHEMA = 1
Verdict = Literal["green", "red", "void"]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]

CPU_CHECKS = (
    "digest",
    "labels",
    "account",
    "no-compiler",
    "no-build-remains",
    "no-secrets",
    "packaged-files",
    "patched-files",
    "extensions",
    "libraries",
    "metadata",
    "starts-offline",
)
# What a report must hold to be publishable. A part that was left out proves nothing.
MANDATORY_CHECKS: dict[str, tuple[str, ...]] = {
    "cpu": CPU_CHECKS,
    "sm103": (*CPU_CHECKS, "device-code", "kernel-module"),
}
MANDATORY_SUITES: dict[str, tuple[str, ...]] = {
    "cpu": ("missing-key",),
    "sm103": ("missing-key", "needle"),
}


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Check(Record):
    """One proof. `detail` is one line that says what was found."""

    name: str = Field(min_length=1)
    verdict: Verdict
    detail: str
    seconds: float = Field(ge=0)


class Case(Record):
    """One case of a suite, as the suite wrote it."""

    case: str = Field(min_length=1)
    expected: str
    seen: str
    verdict: Verdict
    ms: float = Field(ge=0)


class Suite(Record):
    """One suite that ran in the image."""

    name: str = Field(min_length=1)
    verdict: Verdict
    detail: str
    seconds: float = Field(ge=0)
    cases: tuple[Case, ...]


class Report(Record):
    """What `build/report/<digest>.json` holds.

    Attributes:
        image: the digest of the image's manifest, which is what a registry is asked for.
        content_sha256: over all other fields as canonical JSON.
    """

    schema_: Literal[1] = Field(alias="schema", default=1)
    image: Digest
    flavor: str
    version: str
    revision: str
    series_sha256: str
    started: str
    seconds: float = Field(ge=0)
    verdict: Verdict
    checks: tuple[Check, ...]
    suites: tuple[Suite, ...]
    content_sha256: str = ""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def hash_of_content(self) -> str:
        content = {key: value for key, value in self.as_json().items() if key != "content_sha256"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def sealed(self) -> Report:
        """Return the same report with `content_sha256` filled in."""
        return self.model_copy(update={"content_sha256": self.hash_of_content()})


def overall(flavor: str, checks: tuple[Check, ...], suites: tuple[Suite, ...]) -> Verdict:
    """Return red if anything is red, else void if anything is void or missing, else green."""
    verdicts = [check.verdict for check in checks] + [suite.verdict for suite in suites]
    verdicts += [case.verdict for suite in suites for case in suite.cases]
    if "red" in verdicts:
        return "red"
    if "void" in verdicts or missing_parts(flavor, checks, suites):
        return "void"
    return "green"


def missing_parts(flavor: str, checks: tuple[Check, ...], suites: tuple[Suite, ...]) -> list[str]:
    """Return the mandatory parts that are not there, or are there without a case."""
    present = {check.name for check in checks}
    ran = {suite.name for suite in suites if suite.cases}
    return [
        *(f"check {name}" for name in MANDATORY_CHECKS[flavor] if name not in present),
        *(f"suite {name}" for name in MANDATORY_SUITES[flavor] if name not in ran),
    ]


def report_path(layout: Layout, digest: str) -> Path:
    """Return where the report on the image `digest` lies."""
    return layout.reports / f"{digest.removeprefix('sha256:')}.json"


def save_report(layout: Layout, report: Report) -> Path:
    """Write the report as JSON, and beside it as text for people; return the JSON's path."""
    path = report_path(layout, report.image)
    write_atomically(path.with_suffix(".txt"), as_text(report))
    write_atomically(path, json.dumps(report.sealed().as_json(), indent=1) + "\n")
    return path


def load_report(path: Path) -> Report:
    """Read a report.

    Raises:
        ConfigurationError: it is missing, not JSON, of another schema, or was edited.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as missing:
        raise ConfigurationError(
            f"{path}: expected a report, found none; run 'python build.py verify'"
        ) from missing
    except ValueError as broken:
        raise ConfigurationError(f"{path}: expected JSON, found {broken}") from broken
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise ConfigurationError(f"{path}: expected schema {SCHEMA}, found {schema!r}")
    try:
        report = Report.model_validate(value)
    except ValidationError as invalid:
        first = invalid.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{path}: {where}: {first['msg']}") from invalid
    if report.content_sha256 != report.hash_of_content():
        raise ConfigurationError(
            f"{path}: expected content_sha256 {report.hash_of_content()}, found "
            f"{report.content_sha256 or 'none'}: it was edited; run 'python build.py verify' again"
        )
    return report


def refuse_unless_publishable(report: Report, digest: str) -> None:
    """Let a green and whole report on exactly `digest` pass.

    Raises:
        PublishError: anything else; the message names the first reason.
    """
    if report.image != digest:
        raise PublishError(f"report: expected one on {digest}, found one on {report.image}")
    if report.flavor not in MANDATORY_CHECKS:
        raise PublishError(f"report on {digest}: unknown flavor '{report.flavor}'")
    parts: tuple[Check | Suite, ...] = (*report.checks, *report.suites)
    for part in parts:
        if part.verdict != "green":
            raise PublishError(f"report on {digest}: {part.name} is {part.verdict}: {part.detail}")
    for suite in report.suites:
        for case in suite.cases:
            if case.verdict != "green":
                raise PublishError(
                    f"report on {digest}: {suite.name}: case {case.case} is {case.verdict}"
                )
    if missing := missing_parts(report.flavor, report.checks, report.suites):
        raise PublishError(
            f"report on {digest}: expected {missing[0]}, which was skipped"
            + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
            + "; run 'python build.py verify' again"
        )
    if report.verdict != "green":
        raise PublishError(f"report on {digest}: verdict is {report.verdict}, its parts are green")


def as_text(report: Report) -> str:
    """Return the report as a table for people."""
    lines = [
        f"image    {report.image}",
        f"flavor   {report.flavor}   version {report.version}   revision {report.revision}",
        f"verdict  {report.verdict}   {report.seconds:.0f} s from {report.started}",
        "",
    ]
    lines += [
        f"{check.verdict:<6}{check.name:<18}{check.seconds:>7.1f} s  {check.detail}"
        for check in report.checks
    ]
    for suite in report.suites:
        lines += [
            "",
            f"{suite.verdict:<6}suite {suite.name}: {len(suite.cases)} cases, {suite.seconds:.1f} s"
            + (f"  {suite.detail}" if suite.detail else ""),
        ]
        lines += [
            f"  {case.verdict:<6}{case.ms:>9.1f} ms  {case.case}"
            + (
                ""
                if case.verdict == "green"
                else f"\n    expected {case.expected}\n    seen     {case.seen}"
            )
            for case in suite.cases
        ]
    return "\n".join(lines) + "\n"
