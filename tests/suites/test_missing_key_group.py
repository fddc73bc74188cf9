"""A case that hangs or crashes is red and costs no other case its result."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from headrace.suites.missing_key import group
from headrace.suites.missing_key.case import Endpoint, Surroundings
from headrace.suites.missing_key.group import Group
from headrace.suites.results import CaseResult
from tests.suites import stand_in_child
from tests.suites.sites import ROOT

AROUND = Surroundings(Endpoint("127.0.0.1", 1), "prefix:", {}, patience=0.5)


def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[dict[str, CaseResult], Path, Group]:
    monkeypatch.setattr(group, "CHILD", stand_in_child.__name__)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    log = tmp_path / "group.log"
    reported: list[CaseResult] = []
    one = Group(stand_in_child.GROUP, AROUND, log, reported.append, threading.Event())
    results = one.run(stand_in_child.CASES, "there is no private server")
    assert results == reported
    assert [result.case for result in results] == [case.name for case in stand_in_child.CASES]
    return {result.case: result for result in results}, log, one


def test_every_kind_of_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    began = time.monotonic()
    results, log, one = run(monkeypatch, tmp_path)
    assert time.monotonic() - began < 60
    assert {name: result.verdict for name, result in results.items()} == {
        "first": "green", "hang": "red", "second": "green", "crash": "red", "wrong": "red",
        "unreached": "void", "raises": "red", "private": "void", "last": "green",
    }  # fmt: skip
    assert results["hang"].seen == f"did not end within 1 s; stacks in {log}"
    assert results["crash"].seen == f"its process died (status -9); stacks in {log}"
    assert results["wrong"].seen == "two lines"
    assert results["raises"].seen == "raised KeyError: 'surprise'"
    assert results["private"].seen == "there is no private server"
    assert results["first"].ms == 7.0
    assert one.about == {"lmcache": "stand_in_child.py"}


def test_a_hang_leaves_its_stacks_and_gets_a_new_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results, log, _ = run(monkeypatch, tmp_path)
    text = log.read_text()
    assert "Timeout (0:00:01)!" in text
    assert "_hang" in text
    assert "a log line on standard output" in text
    processes = [results[name].seen for name in ("first", "second", "last")]
    assert len(set(processes)) == 3


def test_without_lmcache_every_case_is_void(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STAND_IN_MISSING", "ImportError: no such extension")
    results, _, _ = run(monkeypatch, tmp_path)
    assert {result.verdict for result in results.values()} == {"void"}
    assert "no such extension" in results["first"].seen


def test_nothing_is_begun_after_a_stop(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    one = Group(stand_in_child.GROUP, AROUND, tmp_path / "log", lambda result: None, stop)
    assert one.run(stand_in_child.CASES, "") == []
    assert not (tmp_path / "log").exists()
