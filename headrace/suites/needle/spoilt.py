"""A negative control in every private run: a chunk is exchanged on a server, and must be noticed.

Two prompts are stored under marks of their own, by which their keys are found. One chunk of the
one and one of the other change places on the last rank's server. A suite that then finds nothing
wrong with the answers from L2 proves nothing with its other answers either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import valkey

from headrace.errors import ShardError
from headrace.suites.needle.cells import judge
from headrace.suites.needle.options import SUITE
from headrace.suites.needle.prompt import Prompt
from headrace.suites.needle.score import score
from headrace.suites.needle.states import Asker
from headrace.suites.results import CaseResult, Verdict

EXPECTED = "an answer that differs from the cold one: a chunk is another prompt's"

# A spoilt answer must be noticed.
_OPPOSITE: dict[Verdict, Verdict] = {"red": "green", "green": "red", "void": "void"}


def exchange(asker: Asker, prompts: Sequence[Prompt]) -> str:
    """Exchange a chunk of each of two prompts; return why that could not be done, or ""."""
    rank = asker.shards.ranks - 1
    server = asker.shards.client(rank)
    try:
        held = {key: server.get(key) for prompt in prompts for key in _a_key(server, asker, prompt)}
        if len(held) != len(prompts) or None in held.values():
            return f"no chunk of it was found on the server of rank {rank}"
        for key, value in zip(held, reversed(held.values()), strict=True):
            server.set(key, cast(bytes, value))
    except (valkey.ValkeyError, OSError) as failure:
        raise ShardError(f"server of rank {rank}: expected to exchange chunks: {failure}") from None
    return ""


def ask_spoilt(asker: Asker, prompts: Sequence[Prompt], failure: str) -> list[CaseResult]:
    """Ask both prompts from L2: green if the suite calls their answers red.

    Args:
        failure: what `exchange` returned.
    """
    return [_ask(asker, prompt, failure) for prompt in prompts]


def _ask(asker: Asker, prompt: Prompt, failure: str) -> CaseResult:
    case = f"control/{prompt.name}"
    if failure:
        return CaseResult(SUITE, case, EXPECTED, failure, "void", 0.0)
    answer, seen = asker.send(prompt, asker.salt(prompt))
    cell = judge(
        prompt, "L2", answer, score(answer.text, prompt, asker.dialect, asker.known), seen,
        asker.shards.expected(prompt), cold=asker.cold(prompt), exact=asker.dialect.exact,
    )  # fmt: skip
    verdict = _OPPOSITE[cell.verdict]
    told = cell.seen() if cell.verdict != "green" else "the cold answer, with another's chunk in it"
    return CaseResult(SUITE, case, EXPECTED, told, verdict, round(seen.seconds * 1000, 3))


def _a_key(server: valkey.Valkey, asker: Asker, prompt: Prompt) -> list[bytes]:
    """Return one key of a prompt by its mark, the same one of several each time; [] for none."""
    return sorted(server.scan_iter(match=f"*{asker.salt(prompt)}*", count=1000))[:1]
