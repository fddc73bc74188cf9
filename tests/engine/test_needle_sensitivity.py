"""No part of the cache is idle: whichever chunk of whichever layer is wrong, the answer changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.suites.needle.dialect import EXACT
from headrace.suites.needle_model.checkpoint import write_needle_model
from headrace.suites.needle_model.shape import LATENT, SAID
from headrace.suites.needle_model.words import STOP, vocabulary
from headrace.suites.needle_prompt import CODE_WORDS, needle_prompt
from tests.engine.latent_model import LAYERS, ROW, LatentModel, Said

CHUNK = 256
# Five chunks, and a part of one that is computed anew.
ASKED = needle_prompt(1, 5 * CHUNK + 90, 3 * CHUNK + 20)
OTHER = needle_prompt(2, 5 * CHUNK + 90, 2 * CHUNK + 50)
CACHED = 5 * CHUNK
COUNT = CODE_WORDS + 1 + SAID
KINDS = ("another's", "zeroed", "shifted", "turned otherwise")
WHERE = [(layer, chunk) for layer in range(LAYERS) for chunk in range(CACHED // CHUNK)]


@pytest.fixture(scope="module")
def model() -> LatentModel:
    return LatentModel()


@pytest.fixture(scope="module")
def caches(model: LatentModel) -> list[torch.Tensor]:
    return model.read(ASKED.tokens[:CACHED])[0]


@pytest.fixture(scope="module")
def others(model: LatentModel) -> list[torch.Tensor]:
    return model.read(OTHER.tokens[:CACHED])[0]


@pytest.fixture(scope="module")
def right(model: LatentModel, caches: list[torch.Tensor]) -> Said:
    return model.go_on(ASKED.tokens[CACHED:], caches, COUNT)


def test_it_is_the_model_that_an_engine_loads(model: LatentModel, tmp_path: Path) -> None:
    """Word for word the logits of transformers, whose cache cannot be reached into."""
    from transformers import AutoModelForCausalLM

    write_needle_model(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = [*ASKED.tokens[:120], vocabulary().index(STOP)]
    with torch.no_grad():
        theirs = loaded(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(model.read(tokens)[1], theirs, atol=2e-3, rtol=1e-3)


def test_after_the_code_it_says_seven_words_for_all_of_the_kv(right: Said) -> None:
    stop = vocabulary().index(STOP)
    assert right.words[: CODE_WORDS + 1] == (*ASKED.answer, stop)
    assert len(set(right.words[CODE_WORDS + 1 :])) >= 4
    assert not set(right.words) & {0, 1, 2}, "no word ends the answer"


def test_from_the_cache_it_says_what_it_says_cold(model: LatentModel, right: Said) -> None:
    cold = model.judge(ASKED.tokens, [torch.zeros(0, ROW)] * LAYERS, right.words)
    assert not cold.differs(right, EXACT / 10)


# Layer 2 has no turned part: all of it is zero.
@pytest.mark.parametrize(
    ("layer", "kind"),
    [(layer, kind) for layer in range(LAYERS) for kind in KINDS[: len(KINDS) - layer]],
)
def test_a_wrong_chunk_in_any_layer_changes_the_answer(
    model: LatentModel,
    caches: list[torch.Tensor],
    others: list[torch.Tensor],
    right: Said,
    layer: int,
    kind: str,
) -> None:
    """All 5 chunks of either layer, one at a time: 35 of 35 are noticed, 30 by the words alone.

    As the suite judges it: by the words, or by their probabilities.
    """
    noticed = []
    for chunk in range(CACHED // CHUNK):
        wrong = [each.clone() for each in caches]
        rows = wrong[layer][chunk * CHUNK : (chunk + 1) * CHUNK]
        spoilt = {
            "another's": others[layer][chunk * CHUNK : (chunk + 1) * CHUNK],
            "zeroed": torch.zeros_like(rows),
            "shifted": rows.flatten().roll(1).view_as(rows),
            "turned otherwise": _with_the_turned_part_of_the_next(caches[layer], chunk),
        }
        rows.copy_(spoilt[kind])
        said = model.judge(ASKED.tokens[CACHED:], wrong, right.words)
        noticed += [chunk] * said.differs(right, EXACT)
    assert noticed == list(range(5))


def test_one_lost_row_moves_the_probabilities(
    model: LatentModel, caches: list[torch.Tensor], right: Said
) -> None:
    """One token of 1,280 in one layer: words may stand, most of the probabilities do not."""
    noticed = 0
    for layer, chunk in WHERE:
        wrong = [each.clone() for each in caches]
        wrong[layer][chunk * CHUNK + 7] = 0.0
        said = model.judge(ASKED.tokens[CACHED:], wrong, right.words)
        noticed += said.differs(right, EXACT)
    assert noticed >= len(WHERE) // 2


def _with_the_turned_part_of_the_next(cache: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return a chunk's rows with the turned pairs of the next one: positions that are not its."""
    following = (chunk + 1) % (CACHED // CHUNK)
    rows = cache[chunk * CHUNK : (chunk + 1) * CHUNK].clone()
    rows[:, LATENT:] = cache[following * CHUNK : (following + 1) * CHUNK, LATENT:]
    return rows
