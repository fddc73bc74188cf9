"""What the words of the command's options may be."""

from __future__ import annotations

import re

from headrace.errors import ConfigurationError

_DAY = 86400.0


def numbers(option: str, text: str, low: int, high: int) -> tuple[int, ...]:
    """Return the numbers of a list, each once; none of an option that was not given.

    Raises:
        ConfigurationError: a word is no number, or outside `low` to `high`, or there is none.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    good = all(word.isascii() and word.isdigit() and low <= int(word) <= high for word in words)
    if not good or bool(text) > bool(words):
        raise ConfigurationError(
            f"{option} {text!r}: expected numbers from {low} to {high}, separated by commas"
        )
    return tuple(dict.fromkeys(map(int, words)))


def seconds(option: str, value: float, low: float) -> float:
    """Return `value`, or raise ConfigurationError if it is not from `low` to a day."""
    if not low <= value <= _DAY:  # so that what is no number is refused as well
        raise ConfigurationError(
            f"{option} {value:g}: expected seconds from {low:g} to {_DAY:g}, which is a day"
        )
    return value


def one_of(option: str, word: str, words: tuple[str, ...]) -> str:
    """Return `word`, or raise ConfigurationError if it is none of `words`."""
    if word not in words:
        raise ConfigurationError(f"{option} {word!r}: expected one of {', '.join(words)}")
    return word


def checked_tag(text: str) -> str:
    """Return a run's tag, or raise ConfigurationError if a key cannot hold it."""
    # LMCache puts it into keys, whose parts it separates by @ and %.
    if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", text):
        raise ConfigurationError(f"--tag {text!r}: expected at most 64 of A-Z a-z 0-9 . _ -")
    return text
