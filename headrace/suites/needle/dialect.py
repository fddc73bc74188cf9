"""How needle, question and haystack are worded for a kind of model."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from headrace.suites.needle.haystack import plain_words
from headrace.suites.needle.options import DialectName
from headrace.suites.needle_model.shape import SAID
from headrace.suites.needle_model.words import KEYS, SPECIAL, STOP, filler
from headrace.suites.needle_prompt import CODE_WORDS


@dataclass(frozen=True)
class Dialect:
    """The wording of everything in a prompt.

    Attributes:
        opening: what the prompt begins with, after the tokenizer's own first token.
        sentence: a needle, with {key} and {code}.
        question: ends where the code is to follow, with {key}.
        keys: words that name codes; one is asked for, the others are beside it.
        digits: of a code.
        spaced: each digit is a word.
        answer_tokens: tokens asked for.
        words: makes that many words of haystack.
        scripts: of its letters; see `score.scripts_of`.
        exact: how much logarithms of probabilities may differ between answers of a model that
            says the same again and again; None for any other model.
    """

    opening: str
    sentence: str
    question: str
    keys: tuple[str, ...]
    digits: int
    spaced: bool
    answer_tokens: int
    words: Callable[[random.Random, int], str]
    scripts: tuple[str, ...] = ("LATIN",)
    exact: float | None = None

    def write(self, code: str) -> str:
        """Return a code as it stands in a prompt."""
        return " ".join(code) if self.spaced else code

    def numbers(self, answer: str) -> list[str]:
        """Return the numbers of an answer, in order."""
        if self.spaced:
            answer = re.sub(r"(?<=\d)\s+(?=\d)", "", answer)
        return re.findall(r"\d+", answer)


PLAIN = Dialect(
    opening="Read the following notes. A question about them comes at the end.\n\n",
    sentence="\nRemember this: the code for {key} is {code}.\n",
    question=(
        "\n\nQuestion: what is the code for {key}? Give the number only.\n"
        "Answer: the code for {key} is"
    ),
    keys=(
        "the amber gate", "the cedar bridge", "the delta station", "the ember tower",
        "the granite vault", "the harbour lock", "the island ferry", "the juniper house",
        "the lantern yard", "the maple depot", "the northern well", "the orchard barn",
    ),
    digits=7,
    spaced=False,
    answer_tokens=32,
    words=plain_words,
)  # fmt: skip

# In float32 the needle model's probabilities move by less than 1e-3 between ways of computing
# the same, and by tenths if a chunk's KV is not what was stored.
EXACT = 0.02


def dialect(name: DialectName) -> Dialect:
    """Return a dialect by name."""
    if name == "plain":
        return PLAIN
    fillers = filler()
    return Dialect(
        opening=SPECIAL[1],
        sentence=f"remember : the code for {{key}} is {{code}} {STOP}",
        question="question : what is the code for {key} ? answer : the code for {key} is",
        keys=KEYS,
        digits=CODE_WORDS,
        spaced=True,
        # The code, the full stop, and the words that stand for all of the KV.
        answer_tokens=CODE_WORDS + 1 + SAID,
        words=lambda rng, count: " ".join(rng.choices(fillers, k=count)),
        exact=EXACT,
    )
