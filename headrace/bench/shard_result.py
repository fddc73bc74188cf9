"""What one run of the shard bench measured, its verdict, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import SuiteFailedError

Place = Literal["L2", "L1"]


@dataclass(frozen=True)
class Timing:
    """Medians in seconds; the ratio is of speeds, patched over stock, with its interval."""

    stock_seconds: float
    patched_seconds: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class ShardRow:
    """Stores and loads of one prompt, loaded from `place`.

    Attributes:
        stock_most: the bytes that the most loaded rank stored, as its server counts them.
        patched_most: the same.
        store: until the slowest rank's puts have ended.
        load: until the slowest rank has its pages.
    """

    place: Place
    stock_most: int
    patched_most: int
    store: Timing
    load: Timing


@dataclass(frozen=True)
class ShardComparison:
    """Everything that one run measured.

    Attributes:
        world: W.
        chunks: of one prompt, of `chunk_bytes` each.
        stock_hangs: measurements that were repeated because stock did not return from one.
    """

    stock: str
    patched: str
    world: int
    chunks: int
    chunk_bytes: int
    pairs: int
    stock_hangs: int
    patched_hangs: int
    rows: tuple[ShardRow, ...]
    seconds: float

    @property
    def share(self) -> int:
        """The most bytes that one rank may store."""
        return -(-self.chunks // self.world) * self.chunk_bytes


def raise_unless_balanced(result: ShardComparison, folder: Path) -> None:
    """Turn what was counted into the exit status; times are for a reader.

    Raises:
        SuiteFailedError: the most loaded rank of the patched build stored more than its share, or
            a rank of it did not return.
    """
    most = max(row.patched_most for row in result.rows)
    if most > result.share:
        raise SuiteFailedError(
            f"bench shard: the most loaded rank stored {most} bytes, expected at most "
            f"{result.share}; see {folder / 'bench-shard.json'}"
        )
    if result.patched_hangs:
        raise SuiteFailedError(
            f"bench shard: the patched build did not return {result.patched_hangs} times; "
            f"see {folder / 'patched'}"
        )


def shard_table_rows(result: ShardComparison) -> Iterator[Sequence[str]]:
    """Yield the lines of the printed table: what, stock, patched, ratio with interval."""
    prompt = f"{result.chunks} chunks of {result.chunk_bytes} B, {result.world} ranks"
    for row in result.rows:
        yield (
            f"most bytes one rank stores: {prompt}",
            f"{row.stock_most / 1e6:.1f} MB",
            f"{row.patched_most / 1e6:.1f} MB",
            f"{row.stock_most / row.patched_most:.1f} times fewer",
        )
        for what, timing in (("store", row.store), (f"load from {row.place}", row.load)):
            yield (
                f"{what}: {prompt}, {result.pairs} pairs",
                f"{timing.stock_seconds:.3f} s",
                f"{timing.patched_seconds:.3f} s",
                f"{timing.ratio:.2f} [{timing.low:.2f}, {timing.high:.2f}]",
            )
    yield ("hung and repeated", str(result.stock_hangs), str(result.patched_hangs), "")
