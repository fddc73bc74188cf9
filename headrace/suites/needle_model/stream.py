"""The vector of a position: its places, and the norm that leaves it as it is."""

from __future__ import annotations

import math

import torch

from headrace.suites.needle_model.shape import CODE, HIDDEN


def place(number: int) -> slice:
    """Return where a place of the stream lies: [CODE] numbers of [HIDDEN]."""
    return slice(number * CODE, (number + 1) * CODE)


def identity(size: int) -> torch.Tensor:
    """Return the matrix that copies: float64, [size, size]."""
    return torch.eye(size, dtype=torch.float64)


def undo_norm(places: int) -> torch.Tensor:
    """Return norm weights that leave a stream of `places` filled places as it is."""
    length = places * CODE + 16
    return torch.full((HIDDEN,), math.sqrt(length / HIDDEN), dtype=torch.float64)
