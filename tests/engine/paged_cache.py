"""What the ranks' paged caches hold, against the chunks on the servers."""

from __future__ import annotations

from tests.engine.real_engine import RealEngine
from tests.engine.settings import CHUNK
from tests.engine.shards import Shards
from tests.engine.worker_view import digest

# vLLM's latent attention on the CPU takes no other block.
BLOCK = 16


def paged_digests(engine: RealEngine) -> list[list[list[str]]]:
    """Return a digest of each block: rank, layer, block."""
    found: list[list[list[str]]] = engine.workers("block_digests")
    return found


def lacking(engine: RealEngine, servers: Shards, keys: list[set[bytes]]) -> list[int]:
    """Return how many blocks of the chunks on the servers each rank's paged cache lacks.

    A value is a chunk's blocks, layer by layer. A block is named by its bytes: no two of a prompt
    are alike, because their words are not.

    Args:
        keys: of each server, the chunks in question.
    """
    values = [
        value for server, some in enumerate(keys) for value in servers.values(server, sorted(some))
    ]
    counts = []
    for layers in paged_digests(engine):
        there = [set(layer) for layer in layers]
        count = 0
        for value in values:
            size = len(value) // len(layers) // (CHUNK // BLOCK)
            blocks = [digest(value[at : at + size]) for at in range(0, len(value), size)]
            for number, block in enumerate(blocks):
                count += block not in there[number // (CHUNK // BLOCK)]
        counts.append(count)
    return counts
