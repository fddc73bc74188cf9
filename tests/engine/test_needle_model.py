"""The needle model by its own mathematics, without an engine."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
import torch

from headrace.suites.needle_model.checkpoint import write_needle_model
from headrace.suites.needle_model.copying import BETA_POSITION, frequencies
from headrace.suites.needle_model.kerdock import codes
from headrace.suites.needle_model.shape import CODE, POSITIONS, WORDS
from headrace.suites.needle_model.words import vocabulary
from headrace.suites.needle_prompt import needle_prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("needle")
    write_needle_model(folder)
    return folder


def test_codes_are_far_apart() -> None:
    """No two words look more alike than a quarter."""
    found = codes()
    products = found @ found.T
    assert found.shape == (WORDS, CODE)
    assert bool((products.diagonal() == 16).all())
    assert int((products - torch.diag(products.diagonal())).max()) == 4


def test_every_word_has_a_number_of_its_own() -> None:
    assert len(set(vocabulary())) == WORDS


def test_layer_1_cannot_take_a_position_for_another() -> None:
    """At every distance up to the longest prompt the score is far below the maximum."""
    distances = torch.arange(1, POSITIONS, dtype=torch.float64)
    kernel = torch.cos(distances[:, None] * frequencies()).mean(dim=1)
    # All wrong positions together, on both sides, against the right one.
    wrong = 2 * float(torch.exp(BETA_POSITION * (kernel - 1)).sum())
    assert wrong < 1e-2, f"{wrong:.1e} of the attention goes to wrong positions"


def test_the_same_bytes_every_time(folder: Path, tmp_path: Path) -> None:
    write_needle_model(tmp_path)
    assert _digests(tmp_path) == _digests(folder)


@pytest.mark.parametrize("place", [1, 250, 511, 700, 990])
def test_the_code_is_found_wherever_it_is(folder: Path, place: int) -> None:
    """A needle at the start, at the end, inside a chunk and across a border of chunks."""
    asked = needle_prompt(place, 1024, place)
    assert len(asked.tokens) == 1024
    probability, said = _said(folder, [*asked.tokens, *asked.answer], len(asked.answer))
    assert said == asked.answer
    assert math.isclose(probability, 1.0, abs_tol=1e-3)


def test_another_code_gives_another_answer(folder: Path) -> None:
    """The answer is in the prompt and not in the weights: changed there, it changes."""
    asked = needle_prompt(3, 512, 100)
    tokens, first = list(asked.tokens), 100 + 7
    assert tokens[first] == asked.answer[0]
    digits = [vocabulary().index(digit) for digit in "01"]
    tokens[first] = digits[tokens[first] == digits[0]]
    _, said = _said(folder, [*tokens, tokens[first], *asked.answer[1:]], len(asked.answer))
    assert said == (tokens[first], *asked.answer[1:])


def test_a_prompt_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at token 500, found a prompt of 512"):
        needle_prompt(0, 512, 500)


def _said(folder: Path, tokens: list[int], count: int) -> tuple[float, tuple[int, ...]]:
    """Return what the model says at each of the last `count` words, and the least probability."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), logits_to_keep=count + 1).logits[0, :-1]
    best = logits.softmax(-1).max(-1)
    return float(best.values.min()), tuple(best.indices.tolist())


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
