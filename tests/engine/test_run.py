"""A mode that is red, or was ended, makes the whole run red; a stall earns one more run."""

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
        (0.0, [0, 0, 0], 3, 0),
        (0.0, [-9, 0, 0], 3, 1),
        (0.0, [0, 1, 0], 3, 1),
        (run.STILL_MS, [1, 0, 0, 0], 4, 0),
        (run.STILL_MS, [1, 1, 0, 0], 4, 1),
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


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE_MODE", "shard")
    with pytest.raises(SystemExit, match="expected one of plain, sharded, sharded-async"):
        run.main([])
