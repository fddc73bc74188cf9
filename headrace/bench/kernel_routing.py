"""What FlashInfer's routing hands to the activation, computed anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Workset:
    """Where the tokens of the local experts lie.

    Attributes:
        permuted: int32 [tokens, top_k], the permuted row of each slot, -1 if another rank has it.
        limits: int32 [tiles], the row at which the tokens of a tile end.
        experts: int32 [tiles], the local expert of a tile.
        tile: rows of a tile.
    """

    permuted: Ints
    limits: Ints
    experts: Ints
    tile: int

    @property
    def rows(self) -> int:
        """Padded rows."""
        return len(self.limits) * self.tile

    @property
    def valid(self) -> NDArray[np.bool_]:
        """bool [rows], which rows hold a token."""
        rows = np.arange(self.rows)
        return rows < np.repeat(self.limits, self.tile)


def route(slots: Ints, local_experts: int, tile: int) -> Workset:
    """Permute slots by expert and pad each expert's rows to whole tiles.

    Args:
        slots: int32 [tokens, top_k], the expert of each slot; from `local_experts` on remote.
    """
    permuted = np.full(slots.shape, -1, np.int32)
    limits: list[int] = []
    experts: list[int] = []
    for expert in range(local_experts):
        where = np.argwhere(slots == expert)
        first = len(limits) * tile
        permuted[tuple(where.T)] = first + np.arange(len(where))
        for start in range(0, len(where), tile):
            limits.append(min(first + start + tile, first + len(where)))
            experts.append(expert)
    return Workset(permuted, np.array(limits, np.int32), np.array(experts, np.int32), tile)


def random_slots(tokens: int, top_k: int, experts: int, seed: int) -> Ints:
    """Return `top_k` different experts for each token, all equally likely."""
    generator = np.random.default_rng(seed)
    return np.argsort(generator.random((tokens, experts)), axis=1)[:, :top_k].astype(np.int32)
