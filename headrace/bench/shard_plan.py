"""How much the bench of the sharded store measures."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.suites.ranks.settings import Settings


@dataclass(frozen=True)
class ShardPlan:
    """How much is measured.

    Attributes:
        world: W, the ranks of the replica.
        chunks: of one prompt.
        pairs: how often each build is measured.
        layers: of the model; with `hidden` and `chunk_size` it makes a chunk's bytes.
    """

    world: int = 8
    chunks: int = 64
    pairs: int = 7
    layers: int = 5
    chunk_size: int = 256
    hidden: int = 576

    def settings(self, url: str) -> Settings:
        """Return what both builds' engines are opened with; L1 is on where it is measured."""
        settings = Settings(
            url=url,
            chunk_size=self.chunk_size,
            layers=self.layers,
            hidden=self.hidden,
            blocking_seconds=20,
            # Under prefill context parallelism the release's ranks 1 and above load nothing.
            # Its time is that of tensor parallel ranks, among which it broadcasts.
            broadcast="tp",
        )
        pool = 3 * self.chunks * settings.shape.chunk_bytes
        return replace(settings, cpu_bytes=pool)


QUICK_SHARD = ShardPlan(world=2, chunks=5, pairs=2, layers=2, chunk_size=16, hidden=64)
