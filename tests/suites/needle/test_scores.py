"""Scores and distances on their own."""

from __future__ import annotations

import pytest

from headrace.suites.needle.cells import Cell, judge
from headrace.suites.needle.client import Answer
from headrace.suites.needle.dialect import PLAIN, dialect
from headrace.suites.needle.distance import compare, distance
from headrace.suites.needle.evidence import Evidence
from headrace.suites.needle.page import summary
from headrace.suites.needle.plan import Wanted
from headrace.suites.needle.prompt import Prompt
from headrace.suites.needle.score import broken_text, score

PROMPT = Prompt(
    Wanted("p", 10, "depth", 0, 0), tuple(range(10)), "k", "4829137", ("1111111",), 2, 3, 4, 2
)
KNOWN = {"4829137": "the code of prompt p", "1111111": "a distractor of prompt p"}


@pytest.mark.parametrize(
    ("answer", "found", "why"),
    [
        (" 4829137. Then", "right", ""),
        (" **4829137** (line 3)", "right", ""),
        (" 4829138.", "wrong", "found 4829138"),
        (" 482913", "wrong", "found 482913"),
        (" 1111111, not 4829137", "wrong", "a distractor of prompt p"),
        (" in line 12, I think", "missing", "no code in 'in line 12, I think'"),
        ("", "missing", "no code in ''"),
    ],
)
def test_the_first_number_is_the_answer(answer: str, found: str, why: str) -> None:
    judged = score(answer, PROMPT, PLAIN, KNOWN)
    assert judged.found == found
    assert why in judged.why


def test_codes_that_are_spelled_out_are_read_together() -> None:
    speech = dialect("needle-model")
    assert speech.numbers("4 8 2 9 1 . remember 1 2") == ["48291", "12"]
    assert speech.write("48291") == "4 8 2 9 1"


@pytest.mark.parametrize(
    ("answer", "signs"),
    [
        (" 4829137. The na\u00efve caf\u00e9 said so so so so so.", []),
        (" 1 1 1 1 1 1 1 .", []),
        (" \ufffd\ufffd", ["2 replacement characters"]),
        (" \u4f60\u597d", ["letters of CJK"]),
        ("go go go go go go", ["'go' 6 times in a row"]),
        ("a b c " * 6, ["'a b c' 6 times in a row"]),
    ],
)
def test_signs_of_broken_text(answer: str, signs: list[str]) -> None:
    assert broken_text(answer, ["LATIN"]) == signs


def test_distance_is_the_share_to_change() -> None:
    assert distance("", "") == 0
    assert distance("abc", "abc") == 0
    assert distance("abc", "") == 1
    assert distance("abcd", "abxd") == 0.25
    assert distance("kitten", "sitting") == pytest.approx(3 / 7)


@pytest.mark.parametrize(
    ("pairs", "farther"),
    [
        ([(0.0, 0.0)] * 6, False),
        ([(0.4, 0.0)] * 6, True),
        ([(0.4, 0.4), (0.2, 0.3), (0.5, 0.4)], False),
        # One stray prompt of six is chance, all six are not.
        ([(0.4, 0.0), *[(0.0, 0.0)] * 5], False),
        ([(0.4, 0.1), (0.3, 0.1), (0.5, 0.1), (0.4, 0.0)], True),
        ([(0.9, 0.0)], False),
    ],
)
def test_cached_answers_may_differ_as_much_as_cold_ones(
    pairs: list[tuple[float, float]], farther: bool
) -> None:
    assert compare(pairs).farther is farther


def test_wilsons_interval() -> None:
    """24 of 24 is no proof of 100 %: 86 % would do the same once in forty times."""
    assert summary([]) == (0, 0, 0.0, 1.0)
    seen = Evidence(10, 0, (), (), None, None, None, 0.1)
    cell = Cell(PROMPT, "L2", "green", (), (), "", "right", seen)
    green, count, low, high = summary([cell] * 24)
    assert (green, count, high) == (24, 24, 1.0)
    assert low == pytest.approx(0.862, abs=0.001)


@pytest.mark.parametrize(
    ("text", "logprobs", "exact", "why"),
    [
        (" 4829137. on", (-0.1, -0.2), 0.02, ""),
        (" 4829137. on", (-0.1, -0.21), 0.02, ""),
        (" 4829137. on", (-0.1, -0.3), 0.02, "probabilities moved by 0.100 from the cold ones"),
        (" 4829137. off", (-0.1, -0.2), 0.02, "said '4829137. off', cold '4829137. on': other KV"),
        (" 4829137. off", (-0.1, -0.9), None, ""),
    ],
)
def test_an_exact_model_must_say_what_it_said_cold(
    text: str, logprobs: tuple[float, ...], exact: float | None, why: str
) -> None:
    """A right code is not enough where everything else is known to be the same as well."""
    seen = Evidence(10, 8, (1, 1), (0, 0), 0, 8, 0, 0.1)
    cold = Cell(PROMPT, "cold", "green", (), (), " 4829137. on", "right", seen, (-0.1, -0.2))
    answer = Answer(text, 10, 8, 0.1, logprobs)
    cell = judge(
        PROMPT, "L2", answer, score(text, PROMPT, PLAIN, KNOWN), seen, (1, 1),
        cold=cold, exact=exact,
    )  # fmt: skip
    assert cell.found == "right"
    assert cell.verdict == ("red" if why else "green"), cell.why
    assert why in cell.seen()
