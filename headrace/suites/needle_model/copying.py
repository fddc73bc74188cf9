"""Both layers' attention as far as it finds and copies words."""

from __future__ import annotations

import math

import torch

from headrace.suites.needle_model.shape import (
    ANSWER,
    CODE,
    CONSTANT,
    CONTEXT,
    FREQUENCIES,
    LATENT,
    PLACES,
    QUERY,
    ROTARY,
    THETA,
    UNROTATED,
)
from headrace.suites.needle_model.stream import identity, place, undo_norm

BETA_POSITION = 120.0
BETA_MATCH = 40.0


def frequencies() -> torch.Tensor:
    """Return w_j, the turn of each pair that layer 1 uses, in radians a position; float64."""
    numbers = torch.arange(FREQUENCIES, dtype=torch.float64)
    return THETA ** (-numbers / (ROTARY // 2))


def fill_previous_words(layer: dict[str, torch.Tensor]) -> None:
    """Layer 1: head h copies the code of the word h before to place h."""
    layer["input_layernorm"][:] = undo_norm(1)
    layer["post_attention_layernorm"][:] = 1.0
    latent = layer["self_attn.kv_a_proj_with_mqa"]
    latent[:CODE, place(0)] = identity(CODE)
    latent[LATENT : LATENT + 2 * FREQUENCIES : 2, CONSTANT] = 1 / 4
    layer["self_attn.kv_a_layernorm"][:] = math.sqrt(CODE / LATENT)
    # Attention divides scores by the root of the query's width.
    scale = BETA_POSITION * math.sqrt(QUERY) / FREQUENCIES / 4
    for head in range(CONTEXT):
        turned_back = -(head + 1) * frequencies()
        query = layer["self_attn.q_proj"][head * QUERY + UNROTATED : (head + 1) * QUERY]
        query[0 : 2 * FREQUENCIES : 2, CONSTANT] = scale * torch.cos(turned_back)
        query[1 : 2 * FREQUENCIES : 2, CONSTANT] = scale * torch.sin(turned_back)
        value = head * (UNROTATED + CODE) + UNROTATED
        layer["self_attn.kv_b_proj"][value : value + CODE, :CODE] = identity(CODE)
        columns = slice(head * CODE, (head + 1) * CODE)
        layer["self_attn.o_proj"][place(head + 1), columns] = identity(CODE)


def fill_matching(layer: dict[str, torch.Tensor]) -> None:
    """Layer 2: all heads alike copy the code of the word after the same six to the last place."""
    layer["input_layernorm"][:] = undo_norm(PLACES - 1)
    layer["post_attention_layernorm"][:] = 1.0
    latent = layer["self_attn.kv_a_proj_with_mqa"]
    latent[:UNROTATED, CODE : CODE + UNROTATED] = identity(UNROTATED)
    latent[UNROTATED : UNROTATED + CODE, place(0)] = identity(CODE)
    layer["self_attn.kv_a_layernorm"][:] = math.sqrt((UNROTATED + CODE) / LATENT)
    scale = BETA_MATCH * math.sqrt(QUERY) / CODE
    for head in range(CONTEXT):
        query = layer["self_attn.q_proj"][head * QUERY : head * QUERY + UNROTATED]
        query[:, :UNROTATED] = scale * identity(UNROTATED)
        key = head * (UNROTATED + CODE)
        value = key + UNROTATED
        expanded = layer["self_attn.kv_b_proj"]
        expanded[key:value, :UNROTATED] = identity(UNROTATED)
        expanded[value : value + CODE, UNROTATED : UNROTATED + CODE] = identity(CODE)
        columns = slice(head * CODE, (head + 1) * CODE)
        layer["self_attn.o_proj"][place(ANSWER), columns] = identity(CODE) / CONTEXT
