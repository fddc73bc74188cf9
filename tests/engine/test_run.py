"""A part that is red, or was ended, makes the whole run red; a stall earns one more run."""

from __future__ import annotations

import subprocess

import pytest

from tests.engine import run


class Watch:
    """A machine that stood still for `longest_ms` during every run."""

    longest_ms = 0.0

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("still_ms", "statuses", "calls", "wanted"),
    [
        (0.0, [0, 0, 0, 0], 4, 0),
        (0.0, [-9, 0, 0, 0], 4, 1),
        (0.0, [0, 0, 0, 1], 4, 1),
        (run.STILL_MS, [1, 0, 0, 0, 0], 5, 0),
        (run.STILL_MS, [1, 1, 0, 0, 0], 5, 1),
    ],
)
def test_status(
    monkeypatch: pytest.MonkeyPatch,
    still_ms: float,
    statuses: list[int],
    calls: int,
    wanted: int,
) -> None:
    left = list(statuses)
    monkeypatch.delenv("HEADRACE_ENGINE_MODE", raising=False)
    monkeypatch.setattr(Watch, "longest_ms", still_ms)
    monkeypatch.setattr(run, "StallWatch", Watch)
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: left.pop(0))
    assert run.main([]) == wanted
    assert len(statuses) - len(left) == calls


@pytest.mark.parametrize("named", ["shard", "", "sharded,shard"])
def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE_MODE", named)
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: 0)
    with pytest.raises(SystemExit, match="expected one of plain, sharded, sharded-async, needle-"):
        run.main([])


def test_named_parts_run_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[str] = []

    def call(words: list[str], **_: object) -> int:
        files.append(words[-1])
        return 0

    monkeypatch.setenv("HEADRACE_ENGINE_MODE", "sharded,needle-suite")
    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr(run, "StallWatch", Watch)
    assert run.main([]) == 0
    assert files == ["tests/engine/test_real_engine.py", "tests/engine/test_needle_suite.py"]
