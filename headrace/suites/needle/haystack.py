"""The text between the needles: made from a seed, or taken from a file."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ConfigurationError

_LISTS = (
    "keeper pilot miller sailor teacher painter driver baker singer farmer clerk weaver smith "
    "doctor ranger porter mason fisher gardener printer carpenter watchman traveller neighbour",
    "old young quiet patient careful hungry tired cheerful honest curious proud gentle nervous "
    "clever silent friendly stubborn restless famous modest",
    "carried counted painted repaired forgot borrowed measured hid followed admired watched sold "
    "described polished moved opened closed searched found traded collected wrapped",
    "boat lamp barrel letter ladder window basket clock map bell wheel rope table mirror drum "
    "kettle saddle carpet hammer bottle chest flag coat candle book anchor ticket plough",
    "river market harbour forest mountain village station garden bridge island valley library "
    "tower bakery meadow castle road kitchen quarry orchard lighthouse mill theatre chapel",
)
_WHO, _HOW, _DID, _WHAT, _WHERE = (line.split() for line in _LISTS)
_WHEN = (
    "before dawn", "after the storm", "in early spring", "during the fair", "late that evening",
    "on market day", "while it rained", "at the turn of the tide", "when the bells rang",
    "without a word", "for the last time", "as everyone had expected", "against all advice",
    "just in time",
)  # fmt: skip


def plain_words(rng: random.Random, count: int) -> str:
    """Return at least `count` words of plain sentences. No digit is in them."""
    sentences: list[str] = []
    words = 0
    while words < count:
        sentence = (
            f"The {rng.choice(_HOW)} {rng.choice(_WHO)} {rng.choice(_DID)} the {rng.choice(_HOW)} "
            f"{rng.choice(_WHO)}'s {rng.choice(_WHAT)} near the {rng.choice(_WHERE)} "
            f"{rng.choice(_WHEN)}."
        )
        words += sentence.count(" ") + 1
        sentences.append(sentence)
    return " ".join(sentences) + " "


def words_of_file(path: Path, digits: int) -> Callable[[random.Random, int], str]:
    """Return a maker of text out of a file: another stretch of it for each prompt.

    Numbers as long as a code are left out, since they would look like one.

    Raises:
        ConfigurationError: the file cannot be read, or holds fewer than 100 words with letters.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigurationError(
            f"--haystack {path}: expected a text file in UTF-8, found: {failure}; "
            "leave --haystack out for made text"
        ) from failure
    words = re.sub(rf"\d{{{digits},}}", "", text).split()
    spelled = sum(any(map(str.isalpha, word)) for word in words)
    if spelled < 100:
        raise ConfigurationError(
            f"--haystack {path}: expected at least 100 words with letters, found {spelled}; "
            "leave --haystack out for made text"
        )

    def make(rng: random.Random, count: int) -> str:
        at = rng.randrange(len(words))
        turned = [*words[at:], *words[:at]]
        return " ".join((turned * (count // len(words) + 1))[:count]) + " "

    return make
