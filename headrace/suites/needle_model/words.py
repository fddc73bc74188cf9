"""The needle model's words, and what their numbers are."""

from __future__ import annotations

import itertools

from headrace.suites.needle_model.shape import WORDS

SPECIAL = ("<unk>", "<s>", "</s>")
DIGITS = tuple("0123456789")
_GRAMMAR = "remember question answer what is the code for : . ?"
_KEYS = (
    "amber basil cedar delta ember fjord grove heron iris jade koala lotus maple nectar olive "
    "pearl quartz raven sable tulip umber violet willow xenon yarrow zephyr"
)
GRAMMAR, KEYS = tuple(_GRAMMAR.split()), tuple(_KEYS.split())
STOP = "."


def vocabulary() -> tuple[str, ...]:
    """Return the words in the order of their numbers: the last ones mean nothing."""
    fixed = (*SPECIAL, *DIGITS, *GRAMMAR, *KEYS)
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou")]
    filler = ("".join(pair) for pair in itertools.product(syllables, syllables))
    return (*fixed, *itertools.islice(filler, WORDS - len(fixed)))


def filler() -> tuple[str, ...]:
    """Return the words that mean nothing."""
    return vocabulary()[len(SPECIAL) + len(DIGITS) + len(GRAMMAR) + len(KEYS) :]
