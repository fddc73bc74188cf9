"""Fault arms against real servers: green when the engine recomputes, red or void when not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import valkey

from headrace.errors import ConfigurationError, ShardError
from headrace.suites.needle import arms
from headrace.suites.needle.cells import Cell
from headrace.suites.needle.run import Outcome
from headrace.suites.results import overall
from tests.suites.needle.conftest import CHUNK, Stand
from tests.suites.needle.fake_engine import Behaviour


def test_keys_deleted_between_lookup_and_load(stand: Stand) -> None:
    outcome = stand.run(Behaviour(between=lambda: time.sleep(0.3)), faults=("delete-keys",))
    assert _arm(outcome).verdict == "green", _arm(outcome).seen()
    assert overall(outcome.results) == "green"


def test_keys_that_count_as_cached_though_they_were_deleted(stand: Stand) -> None:
    """vLLM reports what was promised; its log says what was computed in the end."""

    def log(line: str) -> None:
        with stand.log.open("a") as stream:
            stream.write(f"{line}\n")

    behaviour = Behaviour(between=lambda: time.sleep(0.3), log_failed_load=log)
    outcome = stand.run(behaviour, faults=("delete-keys",))
    cell = _arm(outcome)
    assert cell.verdict == "green", cell.seen()
    assert cell.evidence
    assert cell.evidence.cached == cell.prompt.whole_chunks * CHUNK > cell.evidence.loaded
    assert overall(outcome.results) == "green"


def test_a_server_that_takes_no_stores_after_the_fault_is_red(stand: Stand) -> None:
    """As an engine that never connects again: it computes all, and answers right."""
    stores = [True]

    def between() -> None:
        time.sleep(0.3)
        stores[0] = False

    behaviour = Behaviour(between=between, stores=lambda: stores[0])
    cell = _arm(stand.run(behaviour, faults=("delete-keys",), only=("fault-*",)))
    assert cell.verdict == "red"
    assert "next prompt: shard 0 got 0 of 2 chunks" in cell.seen()


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
    monkeypatch.setattr(arms, "SILENT_SECONDS", 1.5)
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


@pytest.mark.parametrize(
    ("arm", "command"),
    [("evict", "config_set"), ("silent-shard", "client_pause"), ("delete-keys", "monitor")],
)
def test_an_arm_that_the_server_refuses_is_void_and_the_run_goes_on(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, arm: str, command: str
) -> None:
    def refuse(*words: object, **options: object) -> None:
        raise valkey.ResponseError("NOPERM no permission")

    monkeypatch.setattr(valkey.Valkey, command, refuse)
    outcome = stand.run(faults=(arm,))
    cell = _arm(outcome)
    assert (cell.verdict, cell.ranks) == ("void", ())
    assert f"{arm} did not take place: NOPERM no permission" in cell.seen()
    assert [each.verdict for each in outcome.cells if each is not cell] == ["green"] * 9


def test_an_arm_that_cannot_be_undone_is_void(stand: Stand) -> None:
    outcome = stand.run(faults=("stop-shard",), stop_shard="true", start_shard="exit 4")
    assert _arm(outcome).verdict == "void"
    assert "could not be undone: exit 4: expected status 0, found 4" in _arm(outcome).seen()


def test_a_server_in_the_background_does_not_hold_the_command() -> None:
    began = time.monotonic()
    arms.run_shell("sleep 8 &", 0)
    assert time.monotonic() - began < 5


def test_a_command_that_does_not_return_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "COMMAND_SECONDS", 0.3)
    with pytest.raises(ShardError, match="let it start the server in the background"):
        arms.run_shell("exec sleep 5", 0)


def test_arms_that_lose_keys_come_last(stand: Stand) -> None:
    """Whatever the order of the options: one arm must not take away what another one needs."""
    pid = stand.servers[-1].pid
    outcome = stand.run(
        Behaviour(between=lambda: time.sleep(0.3), patience=0.2),
        faults=("stop-shard", "evict", "delete-keys"), only=("fault-*",),
        stop_shard=f"kill -STOP {pid}", start_shard=f"kill -CONT {pid}",
    )  # fmt: skip
    arms = [(cell.state, cell.verdict) for cell in outcome.cells if cell.state != "cold"]
    assert arms == [("delete-keys", "green"), ("evict", "green"), ("stop-shard", "green")]


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
