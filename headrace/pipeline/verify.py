"""Prove one image, by digest: the checks, then the suites inside it, then the report."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from headrace.console import plain, say, working
from headrace.errors import HeadraceError, VerificationError
from headrace.pipeline import container
from headrace.pipeline.checks import CHECKS, GIVEN, SUITES, Words
from headrace.pipeline.daemon import ensure_daemon
from headrace.pipeline.evidence import (
    MANDATORY_CHECKS,
    MANDATORY_SUITES,
    Case,
    Check,
    Report,
    Suite,
    Verdict,
    overall,
)
from headrace.pipeline.given import refuse_given, take
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import FLAVORS
from headrace.pipeline.report import report_path, save_report
from headrace.pipeline.subject import RefutedError, Subject, UnprovedError, subject_of
from headrace.pipeline.suite_cases import judge_suite
from headrace.pipeline.target import require_target

SUITE_S = 1800.0


def verify(layout: Layout, target: str, given: Mapping[str, Path] | None = None) -> Report:
    """Prove the image that `target` names and write build/report/DIGEST.json and .txt.

    Args:
        target: a flavor that was built in this checkout, or a name that the daemon knows.
        given: suite -> folder with results of it, for suites that need an engine elsewhere.

    Raises:
        VerificationError: a part is red or void; the message names the first one and the report.
        ConfigurationError: the flavor has no image, the name cannot be one, or those results
            cannot be given.
        ImageError: there is no such image.
        MachineError: there is no daemon.
    """
    report = prove(layout, target, given)
    require_green(layout, report)
    return report


def require_green(layout: Layout, report: Report) -> None:
    """Raise VerificationError unless `report` is green; the message names the first fault."""
    if report.verdict != "green":
        raise VerificationError(
            f"{first_fault(report)}; report: {report_path(layout, report.image)}"
        )


def prove(layout: Layout, target: str, given: Mapping[str, Path] | None = None) -> Report:
    """Do what `verify` does, and return the report whatever its verdict is."""
    given = given or {}
    if target in FLAVORS:
        refuse_given(target, given, GIVEN[target])
    require_target(layout, target)
    started, clock = datetime.now(UTC), time.monotonic()
    with ensure_daemon(layout), subject_of(layout, target) as subject:
        refuse_given(subject.flavor, given, GIVEN[subject.flavor])
        checks = run_checks(subject, CHECKS[subject.flavor])
        bound = checks[0].verdict == "green"
        suites = run_suites(subject, SUITES[subject.flavor], given) if bound else ()
    report = Report(
        image=subject.digest,
        flavor=subject.flavor,
        version=subject.version,
        revision=subject.revision,
        series_sha256=subject.series_sha256,
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 1),
        verdict=overall(subject.flavor, checks, suites),
        checks=checks,
        suites=suites,
    ).sealed()
    say(f"{report.verdict}: {report.image}; report: {save_report(layout, report)}")
    return report


def run_checks(
    subject: Subject, checks: Mapping[str, Callable[[Subject], str]]
) -> tuple[Check, ...]:
    """Run all checks of the subject's flavor; one that does not exist is void.

    If the first, which binds everything to the digest, is not green, the rest is void: what they
    would prove is another image.
    """
    done: list[Check] = []
    for name in dict.fromkeys([*checks, *MANDATORY_CHECKS[subject.flavor]]):
        if done and done[0].verdict != "green":
            done.append(Check(name=name, verdict="void", detail="digest is not green", seconds=0))
        else:
            done.append(_run_check(subject, name, checks.get(name)))
        say(f"  {done[-1].verdict:<6}{name}: {plain(done[-1].detail)}")
    return tuple(done)


def _run_check(subject: Subject, name: str, check: Callable[[Subject], str] | None) -> Check:
    clock = time.monotonic()
    verdict: Verdict = "green"
    try:
        if check is None:
            raise UnprovedError(f"flavor {subject.flavor} needs it, and it is not written yet")
        with working(f"checking {name}"):
            detail = check(subject)
    except (RefutedError, VerificationError) as refuted:
        verdict, detail = "red", str(refuted)
    except HeadraceError as unproved:
        verdict, detail = "void", str(unproved)
    seconds = round(time.monotonic() - clock, 2)
    return Check(name=name, verdict=verdict, detail=detail, seconds=seconds)


def run_suites(
    subject: Subject, suites: Mapping[str, Words], given: Mapping[str, Path] | None = None
) -> tuple[Suite, ...]:
    """Run the suites of the subject's flavor in the image, or judge the results that are `given`.

    One that does not exist is void.
    """
    given = given or {}
    done = []
    for name in dict.fromkeys([*suites, *MANDATORY_SUITES[subject.flavor]]):
        clock = time.monotonic()
        try:
            if name not in suites:
                raise UnprovedError(f"flavor {subject.flavor} needs it, and it is not written yet")
            if name in given:
                verdict, detail, cases = take(given[name], _kept(subject, name), subject.digest)
            else:
                words = suites[name](subject.digest)
                with working(f"running {name} in the image"):
                    verdict, detail, cases = _run_suite(subject, name, words)
        except HeadraceError as unproved:
            verdict, detail, cases = "void", str(unproved), ()
        seconds = round(time.monotonic() - clock, 2)
        done.append(Suite(name=name, verdict=verdict, detail=detail, seconds=seconds, cases=cases))
        say(f"  {verdict:<6}{name}: {len(cases)} cases {plain(detail)}")
    return tuple(done)


def _run_suite(
    subject: Subject, name: str, words: Sequence[str]
) -> tuple[Verdict, str, tuple[Case, ...]]:
    kept = _kept(subject, name)
    subject.layout.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=subject.layout.build) as scratch:
        folder = Path(scratch).resolve()
        # The image's user writes here, and has another id than ours.
        folder.chmod(0o777)
        with container.created(
            subject.digest, words, entrypoint="headrace", writable={folder: "/report"}
        ) as made:
            outcome = made.run(timeout=SUITE_S)
            made.save_log(subject.layout.logs / f"{name}-{subject.flavor}.log")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept)
    return judge_suite(outcome, kept / "results.jsonl")


def _kept(subject: Subject, name: str) -> Path:
    return report_path(subject.layout, subject.digest).with_suffix("") / name


def first_fault(report: Report) -> str:
    """Name the first red part, else the first void one, in one line."""
    parts = [(check.name, check.verdict, check.detail) for check in report.checks]
    for suite in report.suites:
        for case in suite.cases:
            detail = f"expected {case.expected}, saw {case.seen}"
            parts.append((f"{suite.name}: {case.case}", case.verdict, detail))
        parts.append((suite.name, suite.verdict, suite.detail))
    for wanted in ("red", "void"):
        for name, verdict, detail in parts:
            if verdict == wanted:
                return plain(f"{name} is {verdict}: {detail}")
    return f"the report on {report.image} is {report.verdict}"
