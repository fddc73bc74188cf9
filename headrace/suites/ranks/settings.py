"""What the engines of a replica are built from. Needs no LMCache, so a test can import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shape:
    """What the KV of a chunk looks like: bf16 latents of one width in every layer."""

    layers: int
    chunk_size: int
    hidden: int

    @property
    def chunk_bytes(self) -> int:
        """The size of one chunk's value."""
        return self.layers * self.chunk_size * self.hidden * 2


@dataclass(frozen=True)
class Settings:
    """What an engine is built from; the same on every rank, unless a test is about that.

    Attributes:
        url: remote_url. `{rank}` is the rank's number; "" for no remote.
        sharded: the sharded store.
        local_cpu: whether L1 keeps chunks.
        cpu_bytes: the pod's CPU budget: of all ranks together.
        blocking_seconds: how long the engine waits for one load from the remote.
        asynchronous: loading during the lookup.
        broadcast: what vLLM gives the engine for its own broadcasts. "pcp": the tensor parallel
            group, which has one rank under prefill context parallelism and does nothing.
            "tp": a group of all ranks.
        world: W as the engine is told; 0 for the number of processes in the replica.
        extra: further extra_config.
        config: further settings by name.
    """

    url: str = ""
    sharded: bool = True
    chunk_size: int = 16
    layers: int = 2
    hidden: int = 64
    local_cpu: bool = False
    cpu_bytes: int = 32 << 20
    blocking_seconds: float = 2.0
    asynchronous: bool = False
    broadcast: str = "pcp"
    world: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        return Shape(self.layers, self.chunk_size, self.hidden)
