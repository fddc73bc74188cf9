"""Builds prompts as token ids: exact lengths, exact places, codes that occur once in the run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import ConfigurationError
from headrace.suites.needle.dialect import Dialect
from headrace.suites.needle.placement import place
from headrace.suites.needle.plan import Wanted

# Tokenizes a text as it stands inside a prompt; with True as at a prompt's very start.
Encode = Callable[[str, bool], list[int]]
_BLOCK_WORDS = 4000


@dataclass(frozen=True)
class Prompt:
    """A prompt and its one right answer.

    Attributes:
        tokens: what is sent.
        code: the right answer.
        others: the codes of the other needles in it.
        place, size: first token of the needle, and its tokens.
        chunk: tokens of a chunk.
        ranks: W.
    """

    wanted: Wanted
    tokens: tuple[int, ...]
    key: str
    code: str
    others: tuple[str, ...]
    place: int
    size: int
    chunk: int
    ranks: int

    @property
    def name(self) -> str:
        return self.wanted.name

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def whole_chunks(self) -> int:
        """N: only whole chunks are cached."""
        return self.length // self.chunk

    @property
    def depth(self) -> int:
        """Percent of the prompt before the needle."""
        return round(100 * self.place / self.length)

    @property
    def needle_chunks(self) -> range:
        """The chunks that hold a part of the needle."""
        return range(self.place // self.chunk, (self.place + self.size - 1) // self.chunk + 1)

    @property
    def needle_ranks(self) -> tuple[int, ...]:
        """The ranks that own those chunks, as far as they are cached."""
        return tuple(
            dict.fromkeys(c % self.ranks for c in self.needle_chunks if c < self.whole_chunks)
        )

    def owned(self, rank: int) -> int:
        """Return how many of its chunks `rank` owns."""
        return len(range(rank, self.whole_chunks, self.ranks))


def codes(seed: int, prompts: int, each: int, digits: int) -> list[list[str]]:
    """Return `each` codes for every prompt; none occurs twice, and the first digit is not 0.

    Raises:
        ConfigurationError: there are not that many.
    """
    low, high = 10 ** (digits - 1), 10**digits
    if prompts * each > (high - low) // 2:
        raise ConfigurationError(
            f"--distractors {each - 1}: expected at most {(high - low) // 2} codes of {digits} "
            f"digits in all prompts, found {prompts * each}; lower it"
        )
    # Reproducible, and no secret.
    drawn = random.Random(f"{seed} codes").sample(range(low, high), prompts * each)  # noqa: S311  # no secret
    texts = [str(number) for number in drawn]
    return [texts[at : at + each] for at in range(0, len(texts), each)]


def build(
    wanted: Wanted,
    dialect: Dialect,
    encode: Encode,
    own_codes: Sequence[str],
    *,
    seed: int,
    chunk: int,
    ranks: int,
) -> Prompt:
    """Return one prompt of exactly `wanted.length` tokens.

    All prompts of a run ask for the same key: a chunk of another prompt in the needle's place
    then gives that prompt's code, which is told apart from none.

    Raises:
        ConfigurationError: the needle and the question do not fit.
    """
    keys = random.Random(f"{seed} keys").sample(dialect.keys, len(dialect.keys))  # noqa: S311  # no secret
    rng = random.Random(f"{seed} {wanted.name}")  # noqa: S311  # no secret
    opening = encode(dialect.opening, True)
    question = encode(dialect.question.format(key=keys[0]), False)
    needle = encode(dialect.sentence.format(key=keys[0], code=dialect.write(own_codes[0])), False)
    first, end = len(opening), wanted.length - len(question)
    at = _place(wanted, rng, first, len(question), len(needle), chunk, ranks)
    body = _haystack(rng, dialect, encode, end - first)
    body[at - first : at - first + len(needle)] = needle
    taken = [range(at - first, at - first + len(needle))]
    placed: list[str] = []
    # Keys may come again where there are more codes than keys; the one asked for does not.
    for number, code in enumerate(own_codes[1:]):
        key = keys[1 + number % (len(keys) - 1)]
        sentence = encode(dialect.sentence.format(key=key, code=dialect.write(code)), False)
        start = _free(rng, len(body), len(sentence), taken)
        if start is None:
            break
        body[start : start + len(sentence)] = sentence
        taken.append(range(start, start + len(sentence)))
        placed.append(code)
    return Prompt(
        wanted, (*opening, *body, *question), keys[0], own_codes[0], tuple(placed),
        at, len(needle), chunk, ranks,
    )  # fmt: skip


def check_room(wanted: Wanted, dialect: Dialect, *, chunk: int, ranks: int) -> None:
    """Raise ConfigurationError if needle and question do not fit even at one token a word.

    That is what the needle model's tokenizer makes of them; others make more.
    """
    code = dialect.write("0" * dialect.digits)
    parts = (dialect.opening, dialect.question, dialect.sentence)
    first, asked, size = (
        len(part.format(key=dialect.keys[0], code=code).split()) for part in parts
    )  # fmt: skip
    # The first key is as long as the others. No place is kept: no secret.
    _place(wanted, random.Random(0), first, asked, size, chunk, ranks)  # noqa: S311  # no secret


def register(prompts: Iterable[Prompt]) -> Mapping[str, str]:
    """Return what each code of the run is, for a person."""
    known: dict[str, str] = {}
    for prompt in prompts:
        known[prompt.code] = f"the code of prompt {prompt.name}"
        known |= dict.fromkeys(prompt.others, f"a distractor of prompt {prompt.name}")
    return known


def _place(
    wanted: Wanted, rng: random.Random, first: int, asked: int, size: int, chunk: int, ranks: int
) -> int:
    """Return the needle's first token, between an opening and a question of so many tokens."""
    end = wanted.length - asked
    try:
        return place(wanted, rng, first=first, end=end, size=size, chunk=chunk, ranks=ranks)
    except ValueError as failure:
        raise ConfigurationError(
            f"{wanted.name}: {failure}; raise --lengths, or add --no-seams"
        ) from failure


def _haystack(rng: random.Random, dialect: Dialect, encode: Encode, count: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < count:
        missing = count - len(tokens)
        tokens += encode(dialect.words(rng, min(_BLOCK_WORDS, missing)), False)
    return tokens[:count]


def _free(
    rng: random.Random, length: int, size: int, taken: Sequence[range]
) -> int | None:  # fmt: skip
    """Return a start for `size` tokens that touches nothing taken; None if none is found."""
    for _ in range(50):
        if length <= size:
            return None
        start = rng.randrange(length - size)
        if all(start + size <= each.start or start >= each.stop for each in taken):
            return start
    return None
