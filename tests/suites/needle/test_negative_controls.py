"""Every way a cache lies must turn the suite red or void, and name the rank where one is to blame.

Each test breaks one thing in a stand-in engine or on its servers, whose suite is green otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import valkey

from headrace.errors import EndpointError
from headrace.suites.needle.cells import Cell
from headrace.suites.needle.run import Outcome
from headrace.suites.results import overall
from tests.suites.needle.conftest import CHUNK, RANKS, Stand
from tests.suites.needle.fake_engine import Behaviour, chunk_keys


def test_all_is_green_when_nothing_is_wrong(stand: Stand) -> None:
    """The suite can pass; whatever follows turns it."""
    outcome = stand.run(seams=True)
    assert [result.seen for result in outcome.results if result.verdict != "green"] == []
    assert overall(outcome.results) == "green"
    assert all(row.stored == row.expected == row.gets for row in outcome.shards)
    assert {cell.prompt.needle_ranks for cell in outcome.cells} >= {(0,), (1,), (2,)}


def test_a_silent_recompute_is_void(stand: Stand) -> None:
    """All answers are right, and none came from a cache."""
    outcome = stand.run(Behaviour(connector=False))
    assert {cell.found for cell in outcome.cells} == {"right"}
    assert _verdicts(outcome, "L1") == _verdicts(outcome, "L2") == {"void"}
    assert "computed anew" in _seen(outcome, "L2")
    assert overall(outcome.results) == "void"


def test_the_engines_own_prefix_cache_is_not_l1(stand: Stand) -> None:
    outcome = stand.run(Behaviour(own_prefix_cache=True))
    assert _verdicts(outcome, "L1") == {"void"}
    assert "own prefix cache" in _seen(outcome, "L1")


def test_without_counters_l1_is_not_proved(stand: Stand) -> None:
    outcome = stand.run(Behaviour(has_metrics=False))
    assert _verdicts(outcome, "L1") == {"void"}
    assert _verdicts(outcome, "L2") == {"green"}


def test_swapped_chunks_are_another_code(stand: Stand) -> None:
    """Two prompts' chunks with their needles, exchanged on a server: whose code it is is told."""

    def swap() -> None:
        one, other = _cold(stand, CHUNK)
        _exchange(stand, one[3], other[3], 3)

    outcome = stand.run(
        Behaviour(at_restart=swap), lengths=(1000, 1001), depths=(42,), distractors=0
    )
    found = [cell for cell in outcome.cells if cell.state == "L2"]
    assert [cell.prompt.needle_chunks for cell in found] == [range(3, 4)] * 2
    assert [cell.found for cell in found] == ["wrong", "wrong"]
    assert found[0].why[0].endswith("the code of prompt 1001-at-42")
    assert all(cell.ranks == (3 % RANKS,) for cell in found), "the needle's owner is to blame"
    assert overall(outcome.results) == "red"


def test_a_chunk_without_its_words_is_a_missing_code(stand: Stand) -> None:
    def blank() -> None:
        one, _ = _cold(stand, CHUNK)
        _servers(stand)[3 % RANKS].set(one[3], json.dumps([0] * CHUNK))

    outcome = stand.run(
        Behaviour(at_restart=blank), lengths=(1000, 1001), depths=(42,), distractors=0
    )
    found = [cell for cell in outcome.cells if cell.state == "L2"]
    assert [cell.found for cell in found] == ["missing", "right"]
    assert found[0].ranks == (0,)


def test_a_shard_pointed_at_another_is_named(stand: Stand) -> None:
    """Rank 1 uses rank 0's server: every answer is right, and the counters give it away."""
    outcome = stand.run(Behaviour(server_of=lambda rank: 0 if rank == 1 else rank))
    cell = next(cell for cell in outcome.cells if cell.state == "L2")
    assert (cell.verdict, cell.found) == ("void", "right")
    assert cell.ranks == (0, 1)
    assert "shard 1: expected 2 GETs, found 0" in cell.seen()
    assert [row.stored for row in outcome.shards][1] == 0


def test_a_lost_shard_is_named(stand: Stand) -> None:
    """One server is emptied: the prefix ends at its first chunk."""
    outcome = stand.run(Behaviour(at_restart=lambda: _empty(stand, 1)))
    cell = next(cell for cell in outcome.cells if cell.state == "L2")
    assert cell.verdict == "void"
    assert f"found {CHUNK}: chunk 1 of rank 1 is the first one missing" in cell.seen()
    assert 1 in cell.ranks


@pytest.mark.parametrize("logged", [True, False])
def test_a_load_that_failed_is_void_though_all_of_it_counts_as_cached(
    stand: Stand, logged: bool
) -> None:
    """vLLM computes anew what it could not load, and reports it as cached as before.

    Servers and engine count as in a sound run; the server's misses or the engine's log tell.
    """
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if logged:
            with stand.log.open("a") as stream:
                stream.write(f"{line}\n")

    def lose() -> None:
        _servers(stand)[1].unlink(_cold(stand, CHUNK)[0][4])

    outcome = stand.run(Behaviour(between=lose, log_failed_load=log), depths=(20,))
    cell = next(cell for cell in outcome.cells if cell.state == "L2")
    assert lines
    assert cell.evidence
    assert (cell.found, cell.evidence.cached) == ("right", 7 * CHUNK)
    assert cell.verdict == "void"
    assert ("384 of 896 tokens that count as cached were computed anew" in cell.seen()) == logged
    assert "shard 1: 2 reads found no key" in cell.seen()
    assert cell.ranks == (1,)
    judged = {result.case: result.verdict for result in outcome.whole}
    assert judged["log/failed loads"] == ("red" if logged else "green")


def test_an_emptied_l2_is_void(stand: Stand) -> None:
    outcome = stand.run(Behaviour(at_restart=lambda: _empty(stand, *range(RANKS))))
    assert _verdicts(outcome, "L2") == {"void"}
    assert "no GET on any server" in _seen(outcome, "L2")


def test_stale_keys_of_another_prompt_are_another_code(stand: Stand) -> None:
    """All of one prompt's keys hold the other's chunks."""

    def mix_up() -> None:
        one, other = _cold(stand, CHUNK)
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            server = _servers(stand)[index % RANKS]
            server.set(mine, _value(server, theirs))

    outcome = stand.run(Behaviour(at_restart=mix_up), lengths=(1000, 1001), depths=(42,))
    cell = next(cell for cell in outcome.cells if cell.state == "L2")
    assert (cell.verdict, cell.found) == ("red", "wrong")
    assert "the code of prompt 1001-at-42" in cell.seen()


def test_a_restart_that_leaves_l1_is_void(stand: Stand) -> None:
    outcome = stand.run(Behaviour(restart_empties=False))
    assert _verdicts(outcome, "L2") == {"void"}
    assert "the restart left L1" in _seen(outcome, "L2")


def test_a_control_from_a_cache_is_void(stand: Stand) -> None:
    outcome = stand.run(Behaviour(salted=False))
    assert _verdicts(outcome, "control") == {"void"}
    assert "takes no notice of the salt" in _seen(outcome, "control")


def test_a_cold_answer_from_an_earlier_run_is_void(stand: Stand) -> None:
    """The same seed again, on servers and an engine that remember it."""
    first = stand.run()
    assert overall(first.results) == "green"
    assert stand.engine is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(valkey.Valkey, "flushall", lambda self: True)
        outcome = stand.run()
        again = stand.run(tag="again")
    assert _verdicts(outcome, "cold") == {"void"}
    assert "choose another --seed, or --tag TEXT" in _seen(outcome, "cold")
    assert overall(again.results) == "green"


def test_without_servers_l2_is_void(stand: Stand, capfd: pytest.CaptureFixture[str]) -> None:
    """And it is said before the first prompt."""
    outcome = stand.run(valkey=(), restart="echo restarts >&2")
    told = capfd.readouterr().err
    assert told.startswith("needle: without --valkey no answer from L2 is proved, and the run ends")
    assert _verdicts(outcome, "L2") == {"void"}
    assert "name them with --valkey" in _seen(outcome, "L2")


def test_answers_that_drift_in_the_cache_are_red(stand: Stand) -> None:
    """Right codes, and the rest of the answer differs whenever it came from L2."""
    outcome = stand.run(
        Behaviour(change=lambda answer, source: answer + (" then on" if source == "L2" else "")),
        depths=(10, 30, 50, 70),
    )
    judged = {result.case: result.verdict for result in outcome.whole}
    assert (judged["distance/L1"], judged["distance/L2"]) == ("green", "red")


def test_answers_that_drift_everywhere_are_green(stand: Stand) -> None:
    """An engine that never says the same twice is no fault of the cache."""
    count = iter(range(10_000))
    outcome = stand.run(
        Behaviour(change=lambda answer, source: f"{answer} {'abcdefg'[next(count) % 7] * 3}"),
        depths=(10, 30, 50, 70),
    )
    assert overall(outcome.results) == "green"


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("\N{REPLACEMENT CHARACTER}" * 2, "2 replacement characters"),
        (" \u0434\u0430", "letters of CYRILLIC"),
        (" on and" * 6, "6 times in a row"),
    ],
)
def test_broken_text_is_red_beside_a_right_code(stand: Stand, text: str, sign: str) -> None:
    outcome = stand.run(
        Behaviour(change=lambda answer, source: answer + (text if source == "L1" else ""))
    )
    cells = [cell for cell in outcome.cells if cell.state == "L1"]
    assert {(cell.verdict, cell.found) for cell in cells} == {("red", "right")}
    assert all(sign in cell.seen() for cell in cells)


def test_a_model_that_cannot_is_not_blamed_on_the_cache(stand: Stand) -> None:
    outcome = stand.run(Behaviour(change=lambda answer, source: " 1234567."))
    cell = next(cell for cell in outcome.cells if cell.state == "L2")
    assert (cell.verdict, cell.found, cell.ranks) == ("red", "wrong", ())
    assert "model or prompt, not the cache" in cell.seen()


@pytest.mark.parametrize(
    ("line", "case"),
    [
        ("LMCache WARNING: Request 1 is still waiting for async lookup after 3 s", "async time-o"),
        ("LMCache ERROR: Timeout occurred for rank 3, recreating all sockets.", "lookup time-outs"),
        ("Ref count is negative: -1.Double free occurred somewhere.", "double frees"),
        ("\x1b[31;20m[2026-11-30] LMCache ERROR:\x1b[0m broken", "errors"),
    ],
)
def test_what_the_log_must_not_hold_is_red(stand: Stand, line: str, case: str) -> None:
    """A line of the time before the suite does not count; one that is written meanwhile does."""
    stand.log.write_text(f"{line}\n")
    assert overall(stand.run().whole) == "green"

    def complain(answer: str, source: str) -> str:
        if source == "L2":
            with stand.log.open("a") as log:
                log.write(f"{line}\n")
        return answer

    outcome = stand.run(Behaviour(change=complain))
    red = [result.case for result in outcome.whole if result.verdict == "red"]
    assert len(red) == 1
    assert red[0].startswith(f"log/{case}")


def test_without_a_log_the_log_is_void(stand: Stand) -> None:
    outcome = stand.run(logs=())
    assert {result.verdict for result in outcome.whole if result.case.startswith("log/")} == {
        "void"
    }


def test_the_same_words_in_fewer_tokens_are_red(stand: Stand) -> None:
    does = Behaviour(sums=True)

    def shorten_at_l2(answer: str, source: str) -> str:
        if source == "L2":
            does.says["logprobs"] = {"token_logprobs": [-0.5]}
        return answer

    does.change = shorten_at_l2
    outcome = stand.run(does, dialect="needle-model")
    assert _verdicts(outcome, "L1") == {"green"}
    assert "said the same in 1 tokens, cold in" in _seen(outcome, "L2")
    assert _verdicts(outcome, "L2") == {"red"}


def test_an_engine_that_goes_away_keeps_what_was_found(stand: Stand) -> None:
    """What it does not answer is red; without counters, or not asked at all, it is void."""

    def leave_at_l1(answer: str, source: str) -> str:
        if source == "L1" and stand.engine:
            stand.engine.leave()
        return answer

    outcome = stand.run(Behaviour(change=leave_at_l1))
    assert _verdicts(outcome, "cold") == {"green"}
    assert [cell.verdict for cell in outcome.cells if cell.state == "L1"] == ["void", "red"]
    assert _interrupted(outcome).startswith("--restart ")
    with pytest.raises(EndpointError, match="expected an endpoint that answers"):
        stand.run(before=lambda engine: engine.leave())


def test_a_shard_that_dies_keeps_what_was_found(stand: Stand) -> None:
    def stop_at_l1(answer: str, source: str) -> str:
        if source == "L1":
            stand.servers[2].stop()
        return answer

    try:
        outcome = stand.run(Behaviour(change=stop_at_l1))
    finally:
        stand.servers[2].start()
    assert [cell.state for cell in outcome.cells] == ["cold", "cold"]
    assert _interrupted(outcome).endswith("; start it, or correct the address")
    assert "(shard 2)" in _interrupted(outcome)
    assert overall(outcome.results) == "void"


def _interrupted(outcome: Outcome) -> str:
    """Return what the one case of an interrupted run says; it is void."""
    (case,) = (each for each in outcome.results if each.case == "run/interrupted")
    assert case.verdict == "void"
    return case.seen


def _servers(stand: Stand) -> list[valkey.Valkey]:
    return [server.client() for server in stand.servers]


def _empty(stand: Stand, *ranks: int) -> None:
    for rank in ranks:
        _servers(stand)[rank].flushall()


def _cold(stand: Stand, chunk: int) -> list[list[str]]:
    """Return the keys of the two prompts that were asked so far."""
    assert stand.engine is not None
    seen: dict[tuple[int, ...], None] = {}
    for request in stand.engine.requests:
        if len(request["prompt"]) > chunk:
            seen[tuple(request["prompt"])] = None
    return [chunk_keys(list(prompt), chunk) for prompt in seen]


def _exchange(stand: Stand, one: str, other: str, index: int) -> None:
    server = _servers(stand)[index % RANKS]
    kept = _value(server, one)
    server.set(one, _value(server, other))
    server.set(other, kept)


def _value(server: valkey.Valkey, key: str) -> Any:
    value: Any = server.get(key)
    assert value is not None, f"{key} was not stored"
    return value


def _verdicts(outcome: Outcome, state: str) -> set[str]:
    return {cell.verdict for cell in outcome.cells if cell.state == state}


def _seen(outcome: Outcome, state: str) -> str:
    return _first(outcome.cells, state).seen()


def _first(cells: Sequence[Cell], state: str) -> Cell:
    return next(cell for cell in cells if cell.state == state)
