"""Verdicts add up, void never passes, and the files say the same as the exit status."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from headrace.errors import MachineError, SuiteFailedError, SuiteVoidError
from headrace.suites.results import (
    CaseResult,
    Verdict,
    overall,
    raise_unless_green,
    write_results,
)
from headrace.suites.show import Reporter


def result(verdict: Verdict, case: str = "case", seen: str = "seen") -> CaseResult:
    return CaseResult("suite", case, "expected", seen, verdict, 1.5)


@pytest.mark.parametrize(
    ("verdicts", "total"),
    [
        (["green", "green"], "green"),
        (["green", "void"], "void"),
        (["void", "red", "green"], "red"),
        ([], "void"),
    ],
)
def test_the_worst_case_decides(verdicts: list[Verdict], total: Verdict) -> None:
    assert overall([result(verdict) for verdict in verdicts]) == total


def test_the_exit_status_follows_the_verdict(tmp_path: Path) -> None:
    raise_unless_green("suite", [result("green")], tmp_path)
    with pytest.raises(SuiteFailedError, match="1 of 2 cases red") as failed:
        raise_unless_green("suite", [result("red"), result("green")], tmp_path)
    assert failed.value.exit_code == 11
    with pytest.raises(SuiteVoidError, match="1 of 2 cases void") as void:
        raise_unless_green("suite", [result("void"), result("green")], tmp_path)
    assert void.value.exit_code == 12
    with pytest.raises(SuiteVoidError):
        raise_unless_green("suite", [], tmp_path)


def test_jsonl_has_one_line_a_case(tmp_path: Path) -> None:
    results = [result("green", "one"), result("red", "two", "no completion within 3.0 s")]
    write_results(tmp_path / "new", "suite", results, {"lmcache": "0.5.5"})
    lines = (tmp_path / "new" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"suite": "suite", "case": "one", "expected": "expected", "seen": "seen",
         "verdict": "green", "ms": 1.5},
        {"suite": "suite", "case": "two", "expected": "expected",
         "seen": "no completion within 3.0 s", "verdict": "red", "ms": 1.5},
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "junit.xml",
        "results.jsonl",
    ]


def test_junit_counts_red_as_failure_and_void_as_error(tmp_path: Path) -> None:
    results = [result("green", "a"), result("red", "b", "bad \x00\xff <&>"), result("void", "c")]
    write_results(tmp_path, "suite", results, {"native client": "/lib.so"})
    root = ET.parse(tmp_path / "junit.xml").getroot()
    assert root.attrib == {
        "name": "suite", "tests": "3", "failures": "1", "errors": "1", "time": "0.004",
    }  # fmt: skip
    assert root.find("properties/property") is not None
    cases = {case.attrib["name"]: case for case in root.iter("testcase")}
    assert len(cases["a"]) == 0
    failure = cases["b"].find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "bad \ufffd\xff <&>"
    assert failure.text is not None
    assert failure.text.startswith("expected: expected\nseen: bad")
    assert cases["c"].find("error") is not None


def test_an_unwritable_folder_is_one_clear_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(MachineError, match="file"):
        write_results(blocked / "folder", "suite", [result("green")], {})


def shown(results: list[CaseResult], terminal: bool) -> str:
    output = io.StringIO()
    with Reporter("suite", Console(file=output, force_terminal=terminal, width=120)) as reporter:
        for one in results:
            reporter.case(one)
        reporter.finish(results)
    return output.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_server_said_is_only_shown(terminal: bool) -> None:
    text = shown([result("red", "a:cat:", "\x07\x9b2J\u202e")], terminal)
    assert "a:cat:" in text and r"\x07\x9b2J\u202e" in text
    assert not set(text) & set("\x07\x9b\u202e")


def test_a_log_gets_one_plain_line_a_case() -> None:
    text = shown([result("green", "one"), result("red", "two [bold]", "x" * 300)], False)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0] == "green       1.5 ms  one: expected expected; saw seen"
    assert lines[1].endswith("two [bold]: expected expected; saw " + "x" * 300)
    assert lines[2] == "red: 2 cases, 1 green, 1 red, 0 void"


def test_a_terminal_gets_a_table() -> None:
    text = shown([result("void", "one", "no server")], True)
    assert "no server" in text
    assert "expected" in text
    assert "1 void" in text
