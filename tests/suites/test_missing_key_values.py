"""Buffers that were not filled, or filled with something else, are told from loaded ones."""

from __future__ import annotations

import pytest

from headrace.suites.missing_key.values import (
    POISON,
    difference,
    is_untouched,
    poisoned,
    value_of,
)


@pytest.mark.parametrize("size", [1, 99, 4096, 1_572_864])
def test_a_value_is_itself(size: int) -> None:
    value = value_of("key", size)
    assert len(value) == size
    assert difference(value, "key") == ""


def test_a_foreign_value_shows() -> None:
    assert difference(value_of("other", 4096), "key") == "foreign bytes from offset 0 on"


def test_an_unfilled_rest_shows() -> None:
    buffer = poisoned(4096)
    buffer[:1000] = value_of("key", 1000)
    assert difference(buffer, "key") == "uninitialised bytes from offset 1000 on"


@pytest.mark.parametrize("shift", [1, 4, 4096, 65536])
def test_a_shifted_value_shows(shift: int) -> None:
    long = value_of("key", 200_000)
    assert difference(long[shift : shift + 100_000], "key") != ""


def test_one_written_byte_shows() -> None:
    buffer = poisoned(100)
    assert is_untouched(buffer)
    buffer[99] = POISON ^ 1
    assert not is_untouched(buffer)
