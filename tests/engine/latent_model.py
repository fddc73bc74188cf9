"""The needle model with its KV cache in the open: what an engine keeps, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.suites.needle_model.checkpoint import weights
from headrace.suites.needle_model.shape import (
    CODE,
    CONFIG,
    HEADS,
    LATENT,
    QUERY,
    ROTARY,
    THETA,
    UNROTATED,
)

LAYERS = 2
ROW = LATENT + ROTARY
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Said:
    """What the model said: words, and the logarithm of each one's probability."""

    words: tuple[int, ...]
    logprobs: torch.Tensor

    def differs(self, other: Said, tolerance: float) -> bool:
        """Return whether words differ, or a probability by more than `tolerance`."""
        if self.words != other.words:
            return True
        return bool((self.logprobs - other.logprobs).abs().max() > tolerance)


class LatentModel:
    """Latent attention by its definition, in float32.

    The cache of a layer is [tokens, LATENT + ROTARY]: normed latents and turned pairs, as
    vLLM keeps them.
    """

    def __init__(self) -> None:
        self._weights = {name.removeprefix("model."): each for name, each in weights().items()}

    def read(
        self, tokens: Sequence[int], caches: Sequence[torch.Tensor] = ()
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the caches after `tokens`, and the logits of each.

        Args:
            caches: of what stands before, for each layer; () for nothing.
        """
        stream = self._weights["embed_tokens.weight"][list(tokens)]
        grown = []
        for layer in range(LAYERS):
            before = caches[layer] if caches else torch.zeros(0, ROW)
            stream, cache = self._layer(layer, stream, before)
            grown.append(cache)
        last = _normed(stream, self._weights["norm.weight"])
        return grown, last @ self._weights["lm_head.weight"].T

    def go_on(self, tokens: Sequence[int], caches: Sequence[torch.Tensor], count: int) -> Said:
        """Read `tokens` behind `caches` and say the `count` most probable words after them."""
        words: list[int] = []
        for _ in range(count):
            _, logits = self.read([*tokens, *words], caches)
            words.append(int(logits[-1].argmax()))
        return self.judge(tokens, caches, words)

    def judge(
        self, tokens: Sequence[int], caches: Sequence[torch.Tensor], words: Sequence[int]
    ) -> Said:
        """Return what the model would say in place of each of `words` after `tokens`."""
        _, logits = self.read([*tokens, *words[:-1]], caches)
        best = logits[-len(words) :].log_softmax(-1).max(-1)
        return Said(tuple(best.indices.tolist()), best.values)

    def _layer(
        self, layer: int, stream: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def weight(name: str) -> torch.Tensor:
            return self._weights[f"layers.{layer}.{name}.weight"]

        normed = _normed(stream, weight("input_layernorm"))
        positions = torch.arange(len(before), len(before) + len(stream))
        rows = normed @ weight("self_attn.kv_a_proj_with_mqa").T
        latent = _normed(rows[:, :LATENT], weight("self_attn.kv_a_layernorm"))
        cache = torch.cat([before, torch.cat([latent, _turned(rows[:, LATENT:], positions)], 1)])
        expanded = (cache[:, :LATENT] @ weight("self_attn.kv_b_proj").T).view(
            -1, HEADS, UNROTATED + CODE
        )
        keys = torch.cat(
            [expanded[..., :UNROTATED], cache[:, None, LATENT:].expand(-1, HEADS, -1)], -1
        )
        queries = (normed @ weight("self_attn.q_proj").T).view(-1, HEADS, QUERY)
        turned = _turned(queries[..., UNROTATED:], positions[:, None])
        queries = torch.cat([queries[..., :UNROTATED], turned], -1) / math.sqrt(QUERY)
        seen = []
        for at in range(0, len(stream), _ROWS_AT_ONCE):
            some = slice(at, at + _ROWS_AT_ONCE)
            scores = torch.einsum("thd,shd->hts", queries[some], keys)
            later = torch.arange(len(cache))[None, :] > positions[some, None]
            scores = scores.masked_fill(later, -math.inf).softmax(-1)
            seen.append(torch.einsum("hts,shd->thd", scores, expanded[..., UNROTATED:]))
        stream = stream + torch.cat(seen).flatten(1) @ weight("self_attn.o_proj").T
        normed = _normed(stream, weight("post_attention_layernorm"))
        gate = torch.nn.functional.silu(normed @ weight("mlp.gate_proj").T)
        inner = gate * (normed @ weight("mlp.up_proj").T)
        return stream + inner @ weight("mlp.down_proj").T, cache


def _normed(stream: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    epsilon = float(str(CONFIG["rms_norm_eps"]))
    return stream * torch.rsqrt(stream.square().mean(-1, keepdim=True) + epsilon) * weight


def _turned(rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Turn each pair of neighbours by its frequency times the position."""
    pairs = rows.reshape(*rows.shape[:-1], -1, 2).double()
    turn = positions[..., None] * THETA ** (
        -torch.arange(ROTARY // 2, dtype=torch.float64) * 2 / ROTARY
    )
    cos, sin = turn.cos(), turn.sin()
    even, odd = pairs[..., 0], pairs[..., 1]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).float()
