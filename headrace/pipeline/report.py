"""Keep the report on an image, read it back, and say whether it is enough to publish."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.console import plain
from headrace.errors import ConfigurationError, PublishError
from headrace.pipeline.evidence import (
    MANDATORY_CHECKS,
    SCHEMA,
    Check,
    Report,
    Suite,
    missing_parts,
)
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import write_atomically
from headrace.pipeline.record_file import read_record, what_broke


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
    advice = "run 'python build.py verify'"
    try:
        value = read_record(path)
        if value.get("schema") != SCHEMA:
            raise ConfigurationError(
                f"{path}: expected schema {SCHEMA}, found {value.get('schema')!r}; {advice} again"
            )
        report = Report.model_validate(value)
    except FileNotFoundError as missing:
        raise ConfigurationError(f"{path}: expected a report, found none; {advice}") from missing
    except ValueError as broken:
        raise ConfigurationError(
            f"{path}: expected a report, found {what_broke(broken)}; {advice} again"
        ) from broken
    if report.content_sha256 != report.hash_of_content():
        raise ConfigurationError(
            f"{path}: expected content_sha256 {report.hash_of_content()}, found "
            f"{report.content_sha256 or 'none'}: it was edited; {advice} again"
        )
    return report


def refuse_unless_publishable(report: Report, digest: str) -> None:
    """Let a green and whole report on exactly `digest` pass.

    Raises:
        PublishError: anything else; the message names the first reason.
    """
    if report.image != digest:
        raise PublishError(
            f"report: expected one on {digest}, found one on {report.image}; "
            "run 'python build.py verify'"
        )
    if report.flavor not in MANDATORY_CHECKS:
        raise PublishError(
            f"report on {digest}: unknown flavor '{report.flavor}'; run 'python build.py verify'"
        )
    parts: tuple[Check | Suite, ...] = (*report.checks, *report.suites)
    for part in parts:
        if part.verdict != "green":
            raise PublishError(
                plain(f"report on {digest}: {part.name} is {part.verdict}: {part.detail}")
            )
    for suite in report.suites:
        for case in suite.cases:
            if case.verdict != "green":
                raise PublishError(
                    plain(f"report on {digest}: {suite.name}: case {case.case} is {case.verdict}")
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
        for case in suite.cases:
            lines.append(f"  {case.verdict:<6}{case.ms:>9.1f} ms  {case.case}")
            if case.verdict != "green":
                lines += [f"    expected {case.expected}", f"    seen     {case.seen}"]
    # Names and details quote given results and the image's files: each stays in its line.
    return "".join(f"{plain(line)}\n" for line in lines)
