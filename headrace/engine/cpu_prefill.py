"""Latent attention of a whole prompt on vLLM's CPU platform, some of its rows at a time.

vLLM 0.31.0 holds the scores of all pairs of a prompt's tokens, twice: 8.6 GB on each rank at
16,384 tokens and four heads. A token's weights follow from its own row of scores alone, so the
rows are taken one part after the other here. The scores of tokens behind them are left out, not
computed and masked.
"""

from __future__ import annotations

from typing import Any

import torch

# Scores of a long prompt then take megabytes, and the multiplication is still a large one.
ROWS = 256


def attention_by_rows(
    self: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_cu_seq_lens: torch.Tensor,
    kv_cu_seq_lens: torch.Tensor,
    causal: bool,
    return_softmax_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Do what vLLM's `CPUSDPAMLAPrefillBackend._ragged_sdpa` does, whose place it takes.

    Args:
        self: the backend, with the `scale` of scores.
        q: [tokens, heads, width] of all requests, one behind the other; k and v alike.
        q_cu_seq_lens, kv_cu_seq_lens: where each request begins, and the end of the last.
        causal: a token sees those up to itself; queries and keys are of the same tokens.

    Returns:
        [tokens, heads, width of v]; with `return_softmax_lse` also the logarithm of each row's
        sum of exponentials, [heads, tokens], float32.
    """
    scale: float = self.scale
    found = v.new_empty(len(q), q.shape[1], v.shape[2])
    sums = torch.empty(q.shape[1], len(q), dtype=torch.float32)
    starts, kv_starts = q_cu_seq_lens.tolist(), kv_cu_seq_lens.tolist()
    for number, start in enumerate(starts[:-1]):
        kv = slice(kv_starts[number], kv_starts[number + 1])
        keys, values = (each[kv].transpose(0, 1).float() for each in (k, v))
        for first in range(start, starts[number + 1], ROWS):
            last = min(first + ROWS, starts[number + 1])
            seen = last - start if causal else keys.shape[1]
            rows = q[first:last].transpose(0, 1).float()
            scores = torch.matmul(rows, keys[:, :seen].transpose(-2, -1)).mul_(scale)
            if causal:
                later = torch.ones(last - first, last - first, dtype=torch.bool).triu(1)
                scores[..., first - start :].masked_fill_(later, float("-inf"))
            weights = torch.softmax(scores, dim=-1)
            found[first:last] = torch.matmul(weights, values[:, :seen]).transpose(0, 1)
            if return_softmax_lse:
                sums[:, first:last] = torch.logsumexp(scores, dim=-1)
    return (found, sums) if return_softmax_lse else found
