"""Bytes that give away every mix-up: values that differ by key and place, buffers of poison."""

from __future__ import annotations

import hashlib

POISON = 0xA5

# A prime: a value that is shifted by any power of two, or mixed with another, no longer matches.
_PERIOD = 4099


def value_of(key: str, size: int) -> bytes:
    """Return the `size` bytes that belong to `key`; never the poison byte at its first place."""
    block = hashlib.shake_128(key.encode()).digest(_PERIOD).replace(bytes([POISON]), b"\x5a")
    return (block * (size // _PERIOD + 1))[:size]


def poisoned(size: int) -> bytearray:
    """Return a receive buffer in which every unwritten byte shows."""
    return bytearray([POISON]) * size


def is_untouched(buffer: bytes | bytearray | memoryview) -> bool:
    """Return whether nothing was written into a buffer of `poisoned`."""
    return bytes(buffer).count(POISON) == len(buffer)


def difference(buffer: bytes | bytearray | memoryview, key: str) -> str:
    """Return "" if the buffer holds exactly the key's value, else what it holds instead."""
    found = bytes(buffer)
    wanted = value_of(key, len(found))
    if found == wanted:
        return ""
    at = next(i for i, (one, other) in enumerate(zip(found, wanted, strict=True)) if one != other)
    kind = "uninitialised" if found[at] == POISON else "foreign"
    return f"{kind} bytes from offset {at} on"
