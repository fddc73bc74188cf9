"""A report publishes an image only if it is green, whole, untouched, and on this very digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigurationError, PublishError
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
from headrace.pipeline.layout import Layout
from headrace.pipeline.report import (
    load_report,
    refuse_unless_publishable,
    report_path,
    save_report,
)

DIGEST = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64


def check(name: str, verdict: Verdict = "green") -> Check:
    return Check(name=name, verdict=verdict, detail="seen", seconds=0.5)


def suite(name: str, *verdicts: Verdict) -> Suite:
    cases = tuple(
        Case(case=f"case {number}", expected="a miss", seen="a miss", verdict=verdict, ms=1)
        for number, verdict in enumerate(verdicts)
    )
    whole: Verdict = (
        "green" if set(verdicts) == {"green"} else "red" if "red" in verdicts else "void"
    )
    return Suite(name=name, verdict=whole, detail="", seconds=1, cases=cases)


CHECKS = tuple(check(name) for name in MANDATORY_CHECKS["cpu"])
SUITES = tuple(suite(name, "green", "green") for name in MANDATORY_SUITES["cpu"])


def report(**changes: Any) -> Report:
    values: dict[str, Any] = {
        "image": DIGEST, "flavor": "cpu", "version": "1", "revision": "r", "series_sha256": "s",
        "started": "2026-01-01T00:00:00+00:00", "seconds": 2, "verdict": "green",
        "checks": CHECKS, "suites": SUITES,
    }  # fmt: skip
    return Report(**{**values, **changes}).sealed()


def test_a_whole_green_report_publishes_its_digest_and_no_other() -> None:
    refuse_unless_publishable(report(), DIGEST)
    with pytest.raises(PublishError, match=f"expected one on {OTHER}, found one on {DIGEST}"):
        refuse_unless_publishable(report(), OTHER)


@pytest.mark.parametrize("name", MANDATORY_CHECKS["cpu"])
@pytest.mark.parametrize("verdict", ["red", "void"])
def test_each_check_alone_refuses(name: str, verdict: Verdict) -> None:
    checks = tuple(check(c.name, verdict) if c.name == name else c for c in CHECKS)
    with pytest.raises(PublishError, match=f"{name} is {verdict}: seen"):
        refuse_unless_publishable(report(checks=checks, verdict="green"), DIGEST)


@pytest.mark.parametrize("name", MANDATORY_CHECKS["cpu"])
def test_a_check_that_was_left_out_refuses(name: str) -> None:
    checks = tuple(c for c in CHECKS if c.name != name)
    assert overall("cpu", checks, SUITES) == "void"
    with pytest.raises(PublishError, match=f"expected check {name}, which was skipped"):
        refuse_unless_publishable(report(checks=checks), DIGEST)


@pytest.mark.parametrize("name", MANDATORY_SUITES["cpu"])
@pytest.mark.parametrize("instead", [(), ("",), ("other",)])
def test_a_suite_that_did_not_run_or_had_no_case_refuses(
    name: str, instead: tuple[str, ...]
) -> None:
    """Left out, there without a case, or another one in its place."""
    others = tuple(part for part in SUITES if part.name != name)
    suites = (*others, *(suite(word, "green") if word else suite(name) for word in instead))
    green = tuple(part.model_copy(update={"verdict": "green"}) for part in suites)
    assert overall("cpu", CHECKS, green) == "void"
    with pytest.raises(PublishError, match=f"expected suite {name}, which was skipped"):
        refuse_unless_publishable(report(suites=green), DIGEST)


@pytest.mark.parametrize("verdict", ["red", "void"])
def test_one_case_of_a_suite_refuses(verdict: Verdict) -> None:
    suites = (suite("missing-key", "green", verdict), SUITES[1])
    assert overall("cpu", CHECKS, suites) == verdict
    with pytest.raises(PublishError, match=f"missing-key is {verdict}"):
        refuse_unless_publishable(report(suites=suites), DIGEST)
    pretending = (suites[0].model_copy(update={"verdict": "green"}), SUITES[1])
    assert overall("cpu", CHECKS, pretending) == verdict
    with pytest.raises(PublishError, match=f"case case 1 is {verdict}"):
        refuse_unless_publishable(report(suites=pretending), DIGEST)


def test_no_checks_at_all_refuse() -> None:
    with pytest.raises(PublishError, match="which was skipped, and"):
        refuse_unless_publishable(report(checks=(), suites=()), DIGEST)


@pytest.mark.parametrize("verdict", ["red", "void"])
def test_a_verdict_that_its_parts_do_not_explain_refuses(verdict: Verdict) -> None:
    with pytest.raises(PublishError, match=f"verdict is {verdict}"):
        refuse_unless_publishable(report(verdict=verdict), DIGEST)


def test_a_report_of_an_unknown_flavor_refuses() -> None:
    with pytest.raises(PublishError, match="unknown flavor 'tpu'"):
        refuse_unless_publishable(report(flavor="tpu"), DIGEST)


def test_red_wins_over_void_and_void_over_green() -> None:
    assert overall("cpu", CHECKS, SUITES) == "green"
    assert overall("cpu", (*CHECKS, check("more", "void")), SUITES) == "void"
    both = (*CHECKS, check("more", "void"), check("most", "red"))
    assert overall("cpu", both, SUITES) == "red"


def test_a_saved_report_reads_back_and_is_readable_beside(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    path = save_report(layout, report(checks=(*CHECKS, check("extra", "red")), verdict="red"))
    assert path == report_path(layout, DIGEST) == tmp_path / f"build/report/{'1' * 64}.json"
    assert load_report(path).checks[-1].name == "extra"
    text = path.with_suffix(".txt").read_text()
    assert DIGEST in text and "red   extra" in text and "case 1" in text


def test_what_is_quoted_stays_in_its_line(tmp_path: Path) -> None:
    found = "/\x1b[2Jred\ngreen digest"
    checks = (CHECKS[0].model_copy(update={"verdict": "red", "detail": found}), *CHECKS[1:])
    made = report(checks=checks, verdict="red", revision="b\r\x07")
    text = save_report(Layout(tmp_path), made).with_suffix(".txt").read_text()
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"/\x1b[2Jred\ngreen digest" in text and r"revision b\r\x07" in text
    with pytest.raises(PublishError, match=r"digest is red: /\\x1b\[2Jred\\ngreen digest$"):
        refuse_unless_publishable(made, DIGEST)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(verdict="red"), "it was edited"),
        (lambda v: v["checks"].pop(), "it was edited"),
        (lambda v: v.update(content_sha256=""), "found none: it was edited"),
        (lambda v: v.update(schema=2), "expected schema 1, found 2"),
        (lambda v: v.pop("schema"), "expected schema 1, found None"),
        (lambda v: v.update(more=1), "more: Extra inputs are not permitted"),
        (lambda v: v.update({"\x1b[2J\n": 1}), r"\\x1b\[2J\\n: Extra inputs"),
        (lambda v: v.pop("image"), "image: Field required"),
        (lambda v: v.update(image="latest"), "image: String should match"),
        (lambda v: v["checks"][0].update(verdict="fine"), "checks.0.verdict"),
    ],
)
def test_an_edited_report_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = save_report(Layout(tmp_path), report())
    edit(path, change)
    with pytest.raises(ConfigurationError, match=message) as refused:
        load_report(path)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{path}: expected ")
    assert line.endswith("; run 'python build.py verify' again")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", pytest.param("[" * 100_000, id="nesting")])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"{path}: expected .*; run 'python build"):
        load_report(path)


def test_a_folder_in_the_place_of_a_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a report, found Is a directory; run"):
        load_report(tmp_path)


def test_a_missing_report_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"run 'python build\.py verify'"):
        load_report(tmp_path / "none.json")
