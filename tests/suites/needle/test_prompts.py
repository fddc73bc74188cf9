"""Prompts: exact lengths, needles where the plan wants them, codes that occur once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigurationError
from headrace.suites.needle.dialect import PLAIN, dialect
from headrace.suites.needle.options import LENGTHS, Options
from headrace.suites.needle.placement import place
from headrace.suites.needle.plan import Kind, Wanted, chosen, plan, rounds, seam_lengths
from headrace.suites.needle.prompt import Prompt, build, codes, register
from tests.suites.needle.fake_engine import Behaviour, FakeEngine

CHUNK = 128
OPTIONS = Options("http://h", ranks=4, chunk=CHUNK, lengths=(700, 1500), depths=(0, 50, 100))


@settings(deadline=None)
@given(
    ranks=st.integers(1, 8), chunk=st.integers(64, 256), size=st.integers(2, 32),
    first=st.integers(0, 40), question=st.integers(1, 60), seed=st.integers(0, 99),
    rank=st.integers(0, 7), part=st.integers(0, 255),
)  # fmt: skip
def test_a_ranks_needle_lies_wholly_inside_its_chunk(
    ranks: int, chunk: int, size: int, first: int, question: int, seed: int, rank: int, part: int
) -> None:
    length = 3 * ranks * chunk + part % chunk
    at = _place("rank", rank % ranks, length, seed, first, length - question, size, chunk, ranks)
    chunks = {at // chunk, (at + size - 1) // chunk}
    assert len(chunks) == 1
    assert chunks.pop() % ranks == rank % ranks
    assert first <= at
    assert at + size <= length - question
    assert (at + size - 1) // chunk < length // chunk, "only whole chunks are cached"


@settings(deadline=None)
@given(chunk=st.integers(32, 256), size=st.integers(2, 32), seed=st.integers(0, 99))
def test_a_border_needle_has_a_part_in_two_cached_chunks(chunk: int, size: int, seed: int) -> None:
    length = 4 * chunk + 7
    at = _place("border", 0, length, seed, 5, length - 20, size, chunk, 2)
    assert at // chunk + 1 == (at + size - 1) // chunk < length // chunk


def test_depths_reach_from_the_first_token_to_the_last() -> None:
    found = [_place("depth", depth, 1000, 0, 30, 950, 20, 128, 2) for depth in (0, 50, 100)]
    assert found == [30, 480, 930]


def test_without_room_it_says_so() -> None:
    with pytest.raises(ValueError, match="no room for a needle of 20 tokens in 40"):
        _place("depth", 0, 40, 0, 10, 25, 20, 128, 2)
    with pytest.raises(ValueError, match="no place for x in 300 tokens"):
        _place("rank", 3, 300, 0, 10, 250, 20, 128, 4)


def test_the_plan_has_a_needle_for_every_rank_border_and_seam() -> None:
    names = [wanted.name for wanted in plan(OPTIONS)]
    assert names[:6] == [f"{n}-at-{d}" for n in (700, 1500) for d in (0, 50, 100)]
    assert names[-5:] == ["rank-0", "rank-1", "rank-2", "rank-3", "border"]
    assert seam_lengths(Options("http://u")) == [255, 256, 257, 2047, 2048, 2049]
    assert seam_lengths(Options("http://u", ranks=2)) == [
        255,
        256,
        257,
        511,
        512,
        513,
        2047,
        2048,
        2049,
    ]
    assert rounds(OPTIONS) % CHUNK, "the last chunk is a part of one"


def test_six_prompts_are_the_default() -> None:
    wanted = plan(Options("http://u", seams=False))
    assert tuple(each.length for each in wanted) == LENGTHS
    assert [n // 256 * 256 for n in (LENGTHS[0], LENGTHS[-1])] == [12_800, 166_656]


@pytest.mark.parametrize("words", ["plain", "needle-model"])
def test_prompts_have_exactly_the_tokens_and_one_answer(words: str) -> None:
    """Also at the shortest lengths, and for both wordings."""
    speech = PLAIN if words == "plain" else dialect("needle-model")
    with FakeEngine([], Behaviour()) as engine:
        wanted = plan(OPTIONS)
        drawn = codes(1, len(wanted), 4, speech.digits)
        prompts = [_build(engine, each, speech, drawn) for each in wanted]
        known = register(prompts)
        assert len(known) == sum(1 + len(prompt.others) for prompt in prompts)
        for prompt in prompts:
            text = "".join(engine._words[token] for token in prompt.tokens)
            told = text if words == "plain" else text.replace(" ", "")
            assert prompt.length == prompt.wanted.length
            assert told.count(prompt.code) == 1, "the code stands once in its prompt"
            needle = "".join(
                engine._words[token]
                for token in prompt.tokens[prompt.place : prompt.place + prompt.size]
            )
            assert prompt.code in needle.replace(" ", "")
            asked = f"the code for {prompt.key} is"
            assert asked in needle
            assert text.count(asked) == 2, "once in the needle, once in the question"
        assert len({prompt.key for prompt in prompts}) == 1, "one key: stale chunks answer"
        assert sum(prompt.owned(rank) for rank in range(4)) == prompt.whole_chunks


def test_one_prompt_alone_is_the_same_as_in_the_whole_plan() -> None:
    """What `--only` asks again is what was asked: text, place and codes."""
    with FakeEngine([], Behaviour()) as engine:
        wanted = plan(OPTIONS)
        drawn = codes(1, len(wanted), 4, 7)
        alone = chosen(wanted, ["rank-2"])
        assert [each.name for each in alone] == ["rank-2"]
        whole = [_build(engine, each, PLAIN, drawn) for each in wanted]
        assert _build(engine, alone[0], PLAIN, drawn) in whole


def test_a_pattern_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="it matches none of 20"):
        chosen(plan(OPTIONS), ["rank-9"])


def test_a_prompt_without_room_names_itself() -> None:
    with FakeEngine([], Behaviour()) as engine:
        wanted = Wanted("50-at-0", 50, "depth", 0, 0)
        with pytest.raises(ConfigurationError, match=r"50-at-0: no room .*raise --lengths"):
            _build(engine, wanted, PLAIN, codes(1, 1, 4, 7))


def test_more_codes_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected at most 45 codes of 2 digits"):
        codes(0, 10, 5, 2)


def test_a_users_text_is_used(tmp_path: Path) -> None:
    from headrace.suites.needle.haystack import words_of_file

    path = tmp_path / "text"
    path.write_text("\n".join(f"word{n}\t1234567" for n in range(120)))
    text = words_of_file(path, 7)(random.Random(0), 300)
    assert len(text.split()) >= 150
    assert "1234567" not in text, "what looks like a code is left out"
    assert not {"\n", "\t"} & set(text), "a line's end is no part of a word"
    for few, count in ("few words", 2), ("1234567 " * 200, 0), ("12.5\n" * 200, 0):
        path.write_text(few)
        with pytest.raises(ConfigurationError, match=f"100 words with letters, found {count}; "):
            words_of_file(path, 7)
    with pytest.raises(ConfigurationError, match="expected a text file"):
        words_of_file(tmp_path / "none", 7)


def _build(
    engine: FakeEngine, wanted: Wanted, speech: object, drawn: list[list[str]]
) -> Prompt:  # fmt: skip
    return build(
        wanted, speech, lambda text, start: engine.encode(text), drawn[wanted.number],  # type: ignore[arg-type]
        seed=1, chunk=CHUNK, ranks=4,
    )  # fmt: skip


def _place(
    kind: Kind, value: int, length: int, seed: int, first: int, end: int, size: int, chunk: int,
    ranks: int,
) -> int:  # fmt: skip
    return place(
        Wanted("x", length, kind, value, 0), random.Random(seed),
        first=first, end=end, size=size, chunk=chunk, ranks=ranks,
    )  # fmt: skip
