"""Fault arms against real servers: green when the engine recomputes, red or void when not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.errors import ConfigurationError
from headrace.suites.needle import faults
from headrace.suites.needle.cells import Cell
from headrace.suites.needle.run import Outcome
from headrace.suites.results import overall
from tests.suites.needle.conftest import Stand
from tests.suites.needle.fake_engine import Behaviour


def test_keys_deleted_between_lookup_and_load(stand: Stand) -> None:
    outcome = stand.run(Behaviour(between=lambda: time.sleep(0.3)), faults=("delete-keys",))
    assert _arm(outcome).verdict == "green", _arm(outcome).seen()
    assert overall(outcome.results) == "green"


def test_an_arm_that_saw_no_lookup_proves_nothing(stand: Stand) -> None:
    """No lookup was seen."""
    with _deaf():
        cell = _arm(stand.run(faults=("delete-keys",)))
    assert cell.verdict == "void"
    assert "did not take place" in cell.seen()


def test_an_arm_that_took_nothing_away_proves_nothing(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups were seen and keys "deleted", and all of the prompt came from L2 all the same."""
    monkeypatch.setattr("valkey.Valkey.unlink", lambda self, *keys: 1)
    cell = _arm(stand.run(Behaviour(between=lambda: time.sleep(0.3)), faults=("delete-keys",)))
    assert cell.verdict == "void"
    assert "came from the cache nevertheless" in cell.seen()


def test_eviction_by_a_small_maxmemory(stand: Stand) -> None:
    outcome = stand.run(faults=("evict",))
    assert _arm(outcome).verdict == "green", _arm(outcome).seen()
    for server in stand.servers:
        assert server.client().config_get("maxmemory") == {"maxmemory": "0"}, "put back"


def test_a_silent_server(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "SILENT_SECONDS", 1.5)
    outcome = stand.run(Behaviour(patience=0.2), faults=("silent-shard",))
    assert _arm(outcome).verdict == "green", _arm(outcome).seen()


def test_a_stopped_server(stand: Stand) -> None:
    """Stopped and let go on by signals, through the user's commands."""
    pid = stand.servers[-1].pid
    try:
        outcome = stand.run(
            Behaviour(patience=0.2), faults=("stop-shard",),
            stop_shard=f"test {{rank}} = 2 && kill -STOP {pid}", start_shard=f"kill -CONT {pid}",
        )  # fmt: skip
    finally:
        os.kill(pid, signal.SIGCONT)
    assert _arm(outcome).verdict == "green", _arm(outcome).seen()


def test_a_wrong_answer_under_a_fault_is_red(stand: Stand) -> None:
    """An engine that takes what it did not get for its prompt."""
    outcome = stand.run(
        Behaviour(
            between=lambda: time.sleep(0.3),
            change=lambda answer, source: " 7654321." if source == "short" else answer,
        ),
        faults=("delete-keys",),
    )
    cell = _arm(outcome)
    assert (cell.verdict, cell.found) == ("red", "wrong")
    assert cell.ranks == (2,)
    assert overall(outcome.results) == "red"


def test_a_request_after_the_fault_that_goes_wrong_is_red(stand: Stand) -> None:
    said: list[str] = []

    def forget(answer: str, source: str) -> str:
        said.append(source)
        return " none." if "short" in said[:-1] else answer

    outcome = stand.run(
        Behaviour(between=lambda: time.sleep(0.3), change=forget), faults=("delete-keys",)
    )
    assert _arm(outcome).verdict == "red"
    assert "next request: missing code" in _arm(outcome).seen()


def test_what_an_arm_needs_is_checked_first(stand: Stand) -> None:
    with pytest.raises(ConfigurationError, match="add --stop-shard and --start-shard"):
        stand.run(faults=("stop-shard",))
    with pytest.raises(ConfigurationError, match="expected --valkey with the servers"):
        stand.run(faults=("evict",), valkey=())


def _arm(outcome: Outcome) -> Cell:
    found = [cell for cell in outcome.cells if cell.prompt.wanted.kind == "fault"]
    cold, arm = found
    assert cold.state == "cold", "a fault prompt is stored cold, and then asked under its fault"
    return arm


@contextmanager
def _deaf() -> Iterator[None]:
    """For the block, the watcher of lookups hears nothing."""

    class Silence:
        def __enter__(self) -> Silence:
            return self

        def __exit__(self, *about: object) -> None:
            pass

        def listen(self) -> list[dict[str, str]]:
            return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("valkey.Valkey.monitor", lambda self: Silence())
        yield
