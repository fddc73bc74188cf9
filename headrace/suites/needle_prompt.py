"""Long prompts for the needle model: a code hidden at a place, others beside it, and a question."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.suites.needle_model.words import DIGITS, KEYS, SPECIAL, filler, vocabulary

CODE_WORDS = 5


@dataclass(frozen=True)
class NeedlePrompt:
    """A prompt and its one right answer, in token ids."""

    tokens: tuple[int, ...]
    answer: tuple[int, ...]


def needle_prompt(seed: int, length: int, place: int, distractors: int = 8) -> NeedlePrompt:
    """Return a prompt of exactly `length` tokens.

    Args:
        seed: of everything random; other seeds give other codes and other text.
        length: tokens, the question's included.
        place: token at which the sentence with the code begins, at least 1.
        distractors: sentences of the same form, each with another key and code.

    Raises:
        ValueError: the sentences do not fit.
    """
    # Reproducible text, and no secret.
    rng = random.Random(seed)  # noqa: S311
    keys = rng.sample(KEYS, distractors + 1)
    wanted, others = _sentence(keys[0], rng), [_sentence(key, rng) for key in keys[1:]]
    question = f"question : what is the code for {keys[0]} ? answer : the code for {keys[0]} is"
    asked = question.split()
    body = length - len(asked)
    free = [*range(1, place - len(wanted) + 1, len(wanted))]
    free += range(place + len(wanted), body - len(wanted) + 1, len(wanted))
    if place < 1 or place + len(wanted) > body or len(free) < distractors:
        raise ValueError(
            f"expected room for {distractors + 1} sentences of {len(wanted)} tokens, one of them "
            f"at token {place}, found a prompt of {length}"
        )
    words = [SPECIAL[1], *rng.choices(filler(), k=body - 1), *asked]
    for at, sentence in zip(
        [place, *rng.sample(free, distractors)], [wanted, *others], strict=True
    ):
        words[at : at + len(sentence)] = sentence
    numbers = {word: number for number, word in enumerate(vocabulary())}
    tokens = tuple(numbers[word] for word in words)
    return NeedlePrompt(tokens, tuple(numbers[word] for word in wanted[-1 - CODE_WORDS : -1]))


def _sentence(key: str, rng: random.Random) -> list[str]:
    return [*f"remember : the code for {key} is".split(), *rng.choices(DIGITS, k=CODE_WORDS), "."]
