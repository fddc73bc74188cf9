"""Fault arms: something is taken away while a prompt loads; the answer must be right all the same.

Each arm has a prompt of its own, stored before the restart. An arm disturbs one rank's server, and
others that use it: run them on servers of your own.
"""

from __future__ import annotations

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


def check_faults(options: Options) -> None:
    """Raise ConfigurationError if an arm lacks what it needs."""
    if options.faults and not options.valkey:
        raise ConfigurationError("--fault: expected --valkey with the servers to disturb")
    if "stop-shard" in options.faults and not (options.stop_shard and options.start_shard):
        raise ConfigurationError(
            "--fault stop-shard: expected how to stop a server and start it again, found nothing; "
            "add --stop-shard and --start-shard, with {rank} in them"
        )


def run_arm(asker: Asker, arm: str, prompt: Prompt) -> Cell:
    """Ask `prompt` under one arm, then again without it, and judge both.

    Green: the answer is right, in time, and so is the next one. Void: the arm did not take place,
    or could not be undone.
    """
    cold = asker.cold(prompt)
    cold_seconds = cold.evidence.seconds if cold and cold.evidence else 0.0
    limit = max(60.0, 3 * cold_seconds + 30.0)
    rank = asker.shards.ranks - 1
    why: list[str] = []
    verdict: Verdict = "green"
    answer, found, seen = "", "missing", None
    for moment in ("", "next request: "):
        try:
            if moment:
                said, evidence = asker.send(prompt, asker.options.tag, limit)
            else:
                said, evidence, doubt = _disturbed(asker, arm, prompt, rank, limit)
                if doubt:
                    verdict = "void"
                    why.append(doubt)
                answer, seen = said.text, evidence
        except _DidNotTakePlaceError as doubtful:
            verdict = "void"
            why.append(str(doubtful))
            continue
        except (EndpointError, ShardError) as failure:
            why.insert(0, f"{moment}no answer within {limit:.0f} s: {failure}")
            verdict = "red"
            continue
        judged = score(said.text, prompt, asker.dialect, asker.known)
        found = found if moment else judged.found
        wrong = [] if judged.found == "right" else [f"{judged.found} code: {judged.why}"]
        wrong += [f"answer has {sign}" for sign in judged.signs]
        if wrong:
            verdict = "red"
            why = [*(f"{moment}{each}" for each in wrong), *why]
    ranks = (rank,) if verdict == "red" else ()
    cell = Cell(prompt, arm, verdict, tuple(why), ranks, answer, found, seen)
    asker.note(cell)
    return cell


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
