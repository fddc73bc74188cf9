"""Chunk bytes that tell which key they belong to, and buffers that tell if they were written."""

from __future__ import annotations

import hashlib

# The latents and indexer keys of one 256-token chunk of the model that the image is for.
REAL_CHUNK_BYTES = 12_392_448
# A seventh of it is what one rank of a sharded store moves at a time; enough for most tests.
MEDIUM_CHUNK_BYTES = 1_548_800

POISON = 0xA5


def chunk(key: object, size: int) -> bytes:
    """Return `size` bytes that no other key has, without a run of POISON."""
    block = hashlib.sha256(repr(key).encode()).digest().replace(bytes([POISON]), b"\x00")
    return (block * (size // len(block) + 1))[:size]


def poisoned(size: int) -> bytearray:
    """Return a buffer in which every byte that was never written shows."""
    return bytearray([POISON]) * size


def is_poison(buffer: bytes | bytearray | memoryview) -> bool:
    """Whether nothing was written into `buffer`."""
    return bytes(buffer) == bytes([POISON]) * len(buffer)
