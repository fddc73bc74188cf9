"""One prompt in one state: what was seen, what it proves, and whose fault it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.suites.needle.client import Answer
from headrace.suites.needle.evidence import Evidence, State, unproved
from headrace.suites.needle.options import SUITE, Options
from headrace.suites.needle.prompt import Prompt
from headrace.suites.needle.score import Score
from headrace.suites.results import CaseResult, Verdict


@dataclass(frozen=True)
class Cell:
    """The outcome of one prompt in one state.

    Attributes:
        state: a `State`, or the name of a fault arm.
        why: what is wrong, in order of weight; empty for green.
        ranks: whose shards are to blame.
        evidence: None if there was no answer.
    """

    prompt: Prompt
    state: str
    verdict: Verdict
    why: tuple[str, ...]
    ranks: tuple[int, ...]
    answer: str
    found: str
    evidence: Evidence | None
    logprobs: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.prompt.name}/{self.state}"

    def result(self) -> CaseResult:
        """Return the cell as a case of the suite."""
        return CaseResult(
            SUITE, self.name, expected(self), self.seen(), self.verdict,
            round(self.evidence.seconds * 1000, 3) if self.evidence else 0.0,
        )  # fmt: skip

    def seen(self) -> str:
        """Return what was seen in one line; it ends with the ranks to blame."""
        if self.why:
            blame = f" [rank {', '.join(map(str, self.ranks))}]" if self.ranks else ""
            return "; ".join(self.why) + blame
        if self.evidence is None:
            return self.prompt.code
        told = f"{self.prompt.code}; {self.evidence.loaded} tokens cached"
        return told + (f", {sum(self.evidence.gets)} GETs" if self.evidence.gets else "")

    def record(self, options: Options, model: str) -> dict[str, Any]:
        """Return the cell's line of cells.jsonl."""
        prompt = self.prompt
        return {
            "cell": self.name, "prompt": prompt.name, "state": self.state,
            "verdict": self.verdict, "found": self.found, "why": self.why, "ranks": self.ranks,
            "tokens": prompt.length, "depth": prompt.depth, "needle_token": prompt.place,
            "needle_chunks": list(prompt.needle_chunks), "needle_ranks": prompt.needle_ranks,
            "chunks": prompt.whole_chunks, "code": prompt.code, "answer": self.answer,
            "logprobs": self.logprobs,
            "evidence": asdict(self.evidence) if self.evidence else None, "seed": options.seed,
            "model": model, "image": options.image, "again": options.again(prompt.name),
        }  # fmt: skip


def expected(cell: Cell) -> str:
    """Return what a cell must show."""
    hit = cell.prompt.whole_chunks * cell.prompt.chunk
    where = {
        "cold": "computed", "control": "computed", "L1": f"{hit} tokens from L1",
        "L2": f"{hit} tokens from L2",
    }.get(cell.state, "computed anew, in time")  # fmt: skip
    return f"{cell.prompt.code}, {where}"


def judge(
    prompt: Prompt,
    state: State,
    answer: Answer,
    score: Score,
    seen: Evidence,
    expected_gets: Sequence[int],
    *,
    cold: Cell | None,
    exact: float | None,
) -> Cell:
    """Return the cell: red for a wrong answer, void for an unproved state, else green.

    A wrong answer from a cache is blamed on the owners of the needle's chunks, unless the model
    could not answer cold either. With `exact`, the answer must be the cold one to that tolerance.
    """
    cold_was_right = cold is None or cold.found == "right"
    doubts = unproved(state, prompt, seen, expected_gets)
    why: list[str] = []
    ranks = [rank for doubt in doubts for rank in doubt.ranks]
    if score.found != "right":
        why.append(f"{score.found} code: {score.why}")
        if state in ("L1", "L2") and not cold_was_right:
            why.append("so it was cold: model or prompt, not the cache")
        elif state in ("L1", "L2"):
            ranks += prompt.needle_ranks
    why += [f"answer has {sign}" for sign in score.signs]
    if exact is not None and cold is not None and cold.evidence is not None:
        why += _moved(answer, cold, exact)
    verdict: Verdict = "red" if why else "void" if doubts else "green"
    why += [f"{state} not proved: {doubt.text}" for doubt in doubts]
    return Cell(
        prompt, state, verdict, tuple(why), tuple(sorted(set(ranks))), answer.text, score.found,
        seen, answer.logprobs,
    )  # fmt: skip


def _moved(answer: Answer, cold: Cell, exact: float) -> list[str]:
    """Return how the answer of an exact model differs from its cold one; empty if it does not."""
    if answer.text != cold.answer:
        return [f"said {_words(answer.text)}, cold {_words(cold.answer)}: other KV"]
    said, first = len(answer.logprobs), len(cold.logprobs)
    if said != first:
        return [f"said the same in {said} tokens, cold in {first}: other KV"]
    pairs = zip(answer.logprobs, cold.logprobs, strict=True)
    most = max((abs(one - other) for one, other in pairs), default=0.0)
    return [f"probabilities moved by {most:.3f} from the cold ones: other KV"] * (most > exact)


def _words(text: str) -> str:
    return repr(" ".join(text.split())[:120])
