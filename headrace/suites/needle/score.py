"""Judges an answer: the code itself, and signs of a broken cache that a right code may hide."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.suites.needle.dialect import Dialect
from headrace.suites.needle.prompt import Prompt

Found = Literal["right", "wrong", "missing"]
# A shorter number may be part of ordinary text.
_CODE_LIKE = 3
_REPEATS = 6


@dataclass(frozen=True)
class Score:
    """How good an answer is.

    Attributes:
        found: whether the first number is the code; "wrong" is another number, "missing" none.
        why: empty for a right answer.
        signs: of broken text.
    """

    found: Found
    why: str
    signs: tuple[str, ...]


def score(answer: str, prompt: Prompt, dialect: Dialect, known: Mapping[str, str]) -> Score:
    """Judge `answer`; `known` says whose each code of the run is."""
    numbers = [each for each in dialect.numbers(answer) if len(each) >= _CODE_LIKE]
    signs = tuple(broken_text(answer, dialect.scripts))
    if numbers and numbers[0] == prompt.code:
        return Score("right", "", signs)
    if numbers:
        whose = known.get(numbers[0])
        told = f", {whose}" if whose else ""
        return Score("wrong", f"expected {prompt.code}, found {numbers[0]}{told}", signs)
    said = " ".join(answer.split())[:60]
    return Score("missing", f"expected {prompt.code}, found no code in {said!r}", signs)


def broken_text(answer: str, scripts: Collection[str]) -> list[str]:
    """Return the signs of a broken cache in `answer`: bytes, scripts, loops.

    Args:
        scripts: that belong there, by the first word of their letters' names.
    """
    signs = []
    replaced = answer.count("\N{REPLACEMENT CHARACTER}")
    if replaced:
        signs.append(f"{replaced} replacement characters")
    foreign = scripts_of(answer) - set(scripts)
    if foreign:
        signs.append(f"letters of {', '.join(sorted(foreign))}")
    words = answer.split()
    for size in range(1, 5):
        for at in range(len(words) - size * _REPEATS + 1):
            unit = words[at : at + size]
            if words[at : at + size * _REPEATS] == unit * _REPEATS and _says_something(unit):
                return [*signs, f"{' '.join(unit)!r} {_REPEATS} times in a row"]
    return signs


def scripts_of(text: str) -> set[str]:
    """Return the scripts of a text's letters: the first words of their Unicode names."""
    letters = {letter for letter in text if letter.isalpha()}
    return {unicodedata.name(letter, "UNNAMED").split()[0] for letter in letters}


def _says_something(unit: list[str]) -> bool:
    """Digits that stand alone may repeat in a code that is spelled out."""
    return not all(re.fullmatch(r"\d", word) for word in unit)
