"""Prompts whose KV is known: every process makes the same tokens and the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from headrace.suites.ranks.settings import Shape

# What a page that nobody wrote holds; no chunk has a run of it.
POISON = 0x5A5A
# Chunks with different labels have no token in common.
_TOKENS_A_LABEL = 10_000


def tokens_of(labels: Sequence[int], chunk_size: int, tail: int = 0) -> list[int]:
    """Return a prompt: one chunk for each label, then `tail` tokens that fill no chunk."""
    return [
        label * _TOKENS_A_LABEL + index
        for label, count in [*((label, chunk_size) for label in labels), (0, tail)]
        for index in range(count)
    ]


def kv_of(labels: Sequence[int], shape: Shape) -> torch.Tensor:
    """Return the KV of the last chunk of a prefix: [layer, token, hidden], as 16-bit patterns.

    It depends on all labels before it, as the latents of a real prompt do: the chunk of another
    prefix with the same tokens has other bytes.
    """
    digest = hashlib.blake2b(repr(tuple(labels)).encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    size = (shape.layers, shape.chunk_size, shape.hidden)
    return torch.randint(-(2**15), 2**15, size, dtype=torch.int16, generator=generator)


class Pages:
    """One rank's paged cache on the "device", and where in it a prompt lies.

    Attributes:
        layers: a tensor [block, token of the block, hidden] in bf16 for each layer.
        slots: the slot of each token of the prompt; no two neighbours are neighbours.
    """

    BLOCK = 16

    def __init__(self, shape: Shape, num_tokens: int, seed: int) -> None:
        # Half of the slots belong to nobody, so that a write to a wrong one shows.
        self._blocks = -(-2 * num_tokens // self.BLOCK) + 1
        self._shape = shape
        size = (self._blocks, self.BLOCK, shape.hidden)
        self._bits = [torch.full(size, POISON, dtype=torch.int16) for _ in range(shape.layers)]
        self.layers = [bits.view(torch.bfloat16) for bits in self._bits]
        generator = torch.Generator().manual_seed(seed)
        total = self._blocks * self.BLOCK
        self.slots = torch.randperm(total, generator=generator)[:num_tokens]

    def fill(self, labels: Sequence[int]) -> None:
        """Write the KV of every chunk, as a prefill does."""
        for chunk in range(len(labels)):
            kv = kv_of(labels[: chunk + 1], self._shape)
            for bits, rows in zip(self._bits, kv, strict=True):
                bits.view(-1, self._shape.hidden)[self._of(chunk)] = rows

    def wrong(self, labels: Sequence[int], chunks: range) -> list[int]:
        """Return those of `chunks` whose KV is not what it must be."""
        wrong = []
        for chunk in chunks:
            kv = kv_of(labels[: chunk + 1], self._shape)
            for bits, rows in zip(self._bits, kv, strict=True):
                if not torch.equal(bits.view(-1, self._shape.hidden)[self._of(chunk)], rows):
                    wrong.append(chunk)
                    break
        return wrong

    def strayed(self, begin: int, end: int) -> int:
        """Return how many slots outside tokens [`begin`, `end`) were written."""
        outside = torch.ones(self._blocks * self.BLOCK, dtype=torch.bool)
        outside[self.slots[begin:end]] = False
        written = torch.zeros_like(outside)
        for bits in self._bits:
            written |= (bits.view(-1, self._shape.hidden) != POISON).any(dim=1)
        return int((written & outside).sum())

    def _of(self, chunk: int) -> torch.Tensor:
        size = self._shape.chunk_size
        return self.slots[chunk * size : (chunk + 1) * size]
