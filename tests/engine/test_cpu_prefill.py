"""Attention by rows is attention: the same numbers as by its definition, whatever the lengths."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from headrace.engine.cpu_prefill import ROWS, attention_by_rows

HEADS, WIDTH, VALUE = 2, 12, 5
SCALE = 0.3


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> list[torch.Tensor]:
    """Return answers and sums of one request, all scores at once, in float64."""
    q, k, v = (each.double().transpose(0, 1) for each in (q, k, v))
    scores = q @ k.transpose(1, 2) * SCALE
    if causal:
        scores += torch.full(scores.shape[1:], -torch.inf, dtype=torch.float64).triu(1)
    return [(scores.softmax(-1) @ v).transpose(0, 1), scores.logsumexp(-1)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "lengths", [[1], [ROWS], [ROWS - 1], [ROWS + 1], [3 * ROWS + 7], [5, 2 * ROWS, 1, ROWS + 3]]
)
def test_it_is_attention(lengths: list[int], causal: bool) -> None:
    """One request and several; with more keys than queries where a context is attended."""
    torch.manual_seed(len(lengths))
    kv_lengths = lengths if causal else [2 * length + 3 for length in lengths]
    starts, kv_starts = (torch.tensor([0, *each]).cumsum(0) for each in (lengths, kv_lengths))
    q = torch.randn(int(starts[-1]), HEADS, WIDTH)
    k, v = (torch.randn(int(kv_starts[-1]), HEADS, width) for width in (WIDTH, VALUE))
    backend = SimpleNamespace(scale=SCALE)
    alone = attention_by_rows(backend, q, k, v, starts, kv_starts, causal, False)
    found, sums = attention_by_rows(backend, q, k, v, starts, kv_starts, causal, True)
    assert isinstance(alone, torch.Tensor)
    assert torch.equal(alone, found)
    for number in range(len(lengths)):
        at = slice(int(starts[number]), int(starts[number + 1]))
        kv = slice(int(kv_starts[number]), int(kv_starts[number + 1]))
        wanted, wanted_sums = _dense(q[at], k[kv], v[kv], causal)
        torch.testing.assert_close(found[at].double(), wanted, rtol=0, atol=2e-6)
        torch.testing.assert_close(sums[:, at].double(), wanted_sums, rtol=0, atol=5e-6)
