"""Sums over all of the cache: the heads that take them, and how they are said after a stop."""

from __future__ import annotations

import math
import random

import torch

from headrace.suites.needle_model.kerdock import codes
from headrace.suites.needle_model.shape import (
    ANSWER,
    CODE,
    CONSTANT,
    CONTEXT,
    FREQUENCIES,
    PLACES,
    QUERY,
    SAID,
    SUMS,
    UNROTATED,
)
from headrace.suites.needle_model.stream import identity, place, undo_norm
from headrace.suites.needle_model.words import STOP, filler, vocabulary

BETA_PHASE = 3.0
# Sums are this much smaller in the stream than they are.
SUM_SCALE = 1 / 16
GAIN = 30.0
# A gate is open above, and its height is this for the word itself: 4 · (16 - 10).
GATE_SLOPE, GATE_FROM, GATE_HEIGHT = 4.0, 10.0, 24.0


def mixture(number: int) -> torch.Tensor:
    """Return a signed permutation of a code's places, another one for each number; float64."""
    rng = random.Random(number)  # noqa: S311  # reproducible, and no secret
    order = rng.sample(range(CODE), CODE)
    signs = [rng.choice((-1.0, 1.0)) for _ in range(CODE)]
    return torch.diag(torch.tensor(signs, dtype=torch.float64))[order]


def expected_sums() -> tuple[torch.Tensor, torch.Tensor]:
    """Return sum 1 and sum 2 of an endless text of words that mean nothing; float64, [CODE]."""
    numbers = [vocabulary().index(word) for word in filler()]
    mean = codes()[numbers].mean(dim=0)
    before = torch.stack([mixture(number) for number in range(CONTEXT)]).sum(dim=0)
    return mean + mixture(CONTEXT) @ mean, mean + mixture(CONTEXT) @ before @ mean


def fill_sums(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Two heads in each layer: means over all positions. A query of zeros looks at all alike."""
    plain, weighted = CONTEXT, CONTEXT + 1
    query = first["self_attn.q_proj"][weighted * QUERY + UNROTATED : (weighted + 1) * QUERY]
    query[0 : 2 * FREQUENCIES : 2, CONSTANT] = BETA_PHASE * math.sqrt(QUERY) / FREQUENCIES / 4
    this_word = slice(UNROTATED, UNROTATED + CODE)
    for head in (plain, weighted):
        value = head * (UNROTATED + CODE) + UNROTATED
        columns = slice(head * CODE, (head + 1) * CODE)
        first["self_attn.kv_b_proj"][value : value + CODE, :CODE] = identity(CODE)
        mixed = second["self_attn.kv_b_proj"][value : value + CODE]
        if head == plain:
            mixed[:, this_word] = identity(CODE)
        else:
            for before in range(CONTEXT):
                mixed[:, before * CODE : (before + 1) * CODE] = mixture(before)
        turned = SUM_SCALE * (identity(CODE) if head == plain else mixture(CONTEXT))
        for layer, total in zip((first, second), SUMS, strict=True):
            layer["self_attn.o_proj"][place(total), columns] = turned


def fill_saying(layer: dict[str, torch.Tensor]) -> None:
    """Layer 2, feed-forward: the sums in place of the copied word, up to six words after STOP."""
    layer["post_attention_layernorm"][:] = undo_norm(PLACES)
    gates, up, down = (layer[f"mlp.{name}_proj"] for name in ("gate", "up", "down"))
    stop = codes()[vocabulary().index(STOP)]
    ordinary = expected_sums()
    for distance in range(SAID):
        sums, copied = (
            slice((2 * distance + kind) * CODE, (2 * distance + kind + 1) * CODE) for kind in (0, 1)
        )
        for rows in (sums, copied):
            gates[rows, place(distance)] = GATE_SLOPE * stop
            gates[rows, CONSTANT] = -GATE_SLOPE * GATE_FROM / 4
        for number, total in enumerate(SUMS):
            turn = mixture(CONTEXT + 1 + 2 * distance + number)
            up[sums, place(total)] = turn
            up[sums, CONSTANT] -= SUM_SCALE / 4 * turn @ ordinary[number]
        down[place(ANSWER), sums] = identity(CODE) * GAIN / SUM_SCALE / GATE_HEIGHT
        up[copied, place(ANSWER)] = identity(CODE)
        down[place(ANSWER), copied] = -identity(CODE) / GATE_HEIGHT
