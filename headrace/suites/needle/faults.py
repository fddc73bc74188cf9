"""Fault arms: something is taken away while a prompt loads; the answer must be right all the same.

Each arm has a prompt of its own, stored before the restart. An arm disturbs one rank's server, and
others that use it: run them on servers of your own.
"""

from __future__ import annotations

import secrets

import valkey

from headrace.errors import ConfigurationError, EndpointError, ShardError
from headrace.suites.needle.arms import ARMS
from headrace.suites.needle.cells import Cell
from headrace.suites.needle.client import Answer
from headrace.suites.needle.evidence import Evidence
from headrace.suites.needle.options import Options
from headrace.suites.needle.prompt import Prompt
from headrace.suites.needle.score import score
from headrace.suites.needle.states import Asker
from headrace.suites.results import Verdict


def check_faults(options: Options, *, can_stop: bool) -> None:
    """Raise ConfigurationError if an arm lacks what it needs.

    Args:
        can_stop: the suite can stop a server without commands.
    """
    if options.faults and not options.valkey:
        raise ConfigurationError("--fault: expected --valkey with the servers to disturb")
    by_command = options.stop_shard and options.start_shard
    if "stop-shard" in options.faults and not (can_stop or by_command):
        raise ConfigurationError(
            "--fault stop-shard: expected how to stop a server and start it again, found nothing; "
            "add --stop-shard and --start-shard, with {rank} in them"
        )


def run_arm(asker: Asker, arm: str, prompt: Prompt) -> Cell:
    """Ask `prompt` under one arm, then again without it, then as a new prompt, and judge all three.

    Green: the answers are right and in time, and the servers get the chunks of the new prompt.
    Void: the arm did not take place, or could not be undone.
    """
    cold = asker.cold(prompt)
    cold_seconds = cold.evidence.seconds if cold and cold.evidence else 0.0
    limit = max(60.0, 3 * cold_seconds + 30.0)
    rank = asker.shards.ranks - 1
    why: list[str] = []
    said, seen, doubt = None, None, ""
    try:
        said, seen, doubt = _disturbed(asker, arm, prompt, rank, limit)
        why += _wrong(asker, prompt, said)
    except _DidNotTakePlaceError as failure:
        doubt = str(failure)
    except EndpointError as failure:
        why.append(f"no answer within {limit:.0f} s: {failure}")
    for moment, ask in (("next request", _again), ("next prompt", _anew)):
        try:
            why += [f"{moment}: {each}" for each in ask(asker, prompt, limit)]
        except EndpointError as failure:
            why.append(f"{moment}: no answer within {limit:.0f} s: {failure}")
        except ShardError as failure:
            why.append(f"{moment}: {failure}")
    verdict: Verdict = "red" if why else "void" if doubt else "green"
    ranks = (rank,) if verdict == "red" else ()
    answer = said.text if said else ""
    found = score(answer, prompt, asker.dialect, asker.known).found
    cell = Cell(
        prompt, arm, verdict, (*why, *([doubt] if doubt else [])), ranks, answer, found, seen
    )
    asker.note(cell)
    return cell


def _again(asker: Asker, prompt: Prompt, limit: float) -> list[str]:
    """Ask the prompt once more; return what is wrong with the answer."""
    return _wrong(asker, prompt, asker.send(prompt, asker.options.tag, limit)[0])


def _anew(asker: Asker, prompt: Prompt, limit: float) -> list[str]:
    """Ask the prompt under another mark: every server must get its chunks, as from a new prompt."""
    before = asker.shards.counters()
    said, _ = asker.send(prompt, f"{asker.options.tag}{secrets.token_hex(8)}", limit)
    got = [each.keys for each in asker.settle(before, [prompt])]
    return _wrong(asker, prompt, said) + [
        f"{asker.shards.who(number)} got {found} of {want} chunks"
        for number, (found, want) in enumerate(zip(got, asker.shards.expected(prompt), strict=True))
        if found < want
    ]


def _wrong(asker: Asker, prompt: Prompt, said: Answer) -> list[str]:
    """Return what is wrong with an answer; empty if nothing is."""
    judged = score(said.text, prompt, asker.dialect, asker.known)
    wrong = [] if judged.found == "right" else [f"{judged.found} code: {judged.why}"]
    return wrong + [f"answer has {sign}" for sign in judged.signs]


class _DidNotTakePlaceError(Exception):
    """The server did not let an arm happen."""


def _disturbed(
    asker: Asker, arm: str, prompt: Prompt, rank: int, limit: float
) -> tuple[Answer, Evidence, str]:
    """Return the answer under an arm, and why that proves nothing ("" if it does).

    Raises:
        EndpointError: there is no answer.
        _DidNotTakePlaceError: nothing was asked.
    """
    outcome: tuple[Answer, Evidence] | EndpointError | None = None
    doubt = ""
    try:
        with ARMS[arm](asker, prompt, rank) as proof:
            try:
                outcome = asker.send_quietly(prompt, asker.options.tag, limit)
            except EndpointError as silent:
                outcome = silent
        if isinstance(outcome, tuple) and (reason := proof(outcome[1])):
            doubt = f"{arm} did not take place: {reason}"
    except (valkey.ValkeyError, OSError, ShardError) as failure:
        if outcome is None:
            raise _DidNotTakePlaceError(f"{arm} did not take place: {failure}") from failure
        doubt = f"{arm} could not be undone: {failure}"
    if isinstance(outcome, EndpointError):
        raise outcome
    assert outcome is not None  # noqa: S101  # for the type checker
    return *outcome, doubt
