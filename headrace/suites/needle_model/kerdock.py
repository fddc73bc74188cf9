"""A code of 16 signs for each word, far from all others: a Kerdock code."""

from __future__ import annotations

import itertools

import torch

from headrace.suites.needle_model.shape import WORDS


def codes() -> torch.Tensor:
    """Return the code of each word: float64, [WORDS, CODE], of 1 and -1."""
    points = list(itertools.product((0, 1), repeat=4))
    pairs = list(itertools.combinations(range(4), 2))
    rows = [
        [
            (-1) ** (sum(q * x[j] * x[k] for q, (j, k) in zip(form, pairs, strict=True)) + line)
            for x, line in zip(points, lines, strict=True)
        ]
        for form in _kerdock_set()
        for slope in points
        for constant in (0, 1)
        for lines in [
            [sum(a * b for a, b in zip(slope, x, strict=True)) + constant for x in points]
        ]
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _kerdock_set() -> list[tuple[int, ...]]:
    """Return 8 quadratic forms on F₂⁴, as the coefficients of x_j x_k with j < k."""
    forms = list(itertools.product((0, 1), repeat=6))

    def nonsingular(form: list[int]) -> bool:
        # The Pfaffian of the alternating matrix, entries in the order 01 02 03 12 13 23.
        return (form[0] * form[5] + form[1] * form[4] + form[2] * form[3]) % 2 == 1

    def extended(chosen: list[tuple[int, ...]], start: int) -> list[tuple[int, ...]] | None:
        if len(chosen) == WORDS // 32:
            return chosen
        for number in range(start, len(forms)):
            sums = ([a ^ b for a, b in zip(forms[number], each, strict=True)] for each in chosen)
            if all(map(nonsingular, sums)):
                found = extended([*chosen, forms[number]], number + 1)
                if found is not None:
                    return found
        return None

    found = extended([], 0)
    if found is None:
        raise AssertionError("a Kerdock set of 8 forms exists")
    return found
