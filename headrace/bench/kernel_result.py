"""What the kernel bench found: a row for each call, a table, and a verdict on the bits."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import SuiteFailedError, SuiteVoidError


@dataclass(frozen=True)
class KernelRow:
    """One call.

    Attributes:
        rows: with a token in it.
        moved: bytes that must be read and written at least.
        sets: of buffers that the launches went through in turn.
        stock_us, patched_us: medians of a launch.
        payload_differences, scale_differences: 4-byte words in which the two outputs differ,
            padding included, summed over the build's four kernels: with and without programmatic
            dependent launch and the SwiGLU controls. Timed is the one with the launch alone.
    """

    tokens: int
    ranks: int
    tile: int
    rows: int
    moved: int
    sets: int
    stock_us: float
    patched_us: float
    payload_differences: int
    scale_differences: int

    @property
    def patched_tbs(self) -> float:
        """TB/s of the bytes that must be moved."""
        return self.moved / self.patched_us / 1e6


@dataclass(frozen=True)
class KernelComparison:
    """All rows of one GPU; `copy_tbs` is its own copy, read and written bytes, in TB/s."""

    device: str
    arch: str
    copy_tbs: float
    rows: tuple[KernelRow, ...]
    seconds: float

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read_row(
    line: str, *, tokens: int, ranks: int, tile: int, rows: int, moved: int, sets: int
) -> KernelRow:
    """Read what the driver printed for one call.

    Raises:
        SuiteVoidError: it is no such line.
    """
    try:
        found = json.loads(line)
        return KernelRow(
            tokens, ranks, tile, rows, moved, sets,
            statistics.median(found["stock_us"]), statistics.median(found["patched_us"]),
            found["payload_differences"], found["scale_differences"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as broken:
        raise SuiteVoidError(f"the driver: expected a call's result, found {line!r}") from broken


def kernel_table_rows(result: KernelComparison) -> list[tuple[str, ...]]:
    """Return the table's cells, as `TABLE_HEAD` names them."""
    return [
        (
            str(row.tokens),
            f"EP{row.ranks}",
            str(row.rows),
            f"{row.stock_us:.1f}",
            f"{row.patched_us:.1f}",
            f"{row.stock_us / row.patched_us:.2f}x",
            f"{row.patched_tbs:.2f}",
            f"{row.patched_tbs / result.copy_tbs:.0%}",
            _bits(row),
        )
        for row in result.rows
    ]


TABLE_HEAD = (
    "tokens", "ranks", "rows", "stock µs", "patched µs", "speed-up", "TB/s", "of copy", "bits",
)  # fmt: skip


def raise_unless_same_bits(rows: Sequence[KernelRow]) -> None:
    """Judge the bits; times are not judged.

    Raises:
        SuiteFailedError: the two builds differ somewhere.
        SuiteVoidError: nothing was compared.
    """
    if not rows:
        raise SuiteVoidError("kernel bench: expected at least one call, found none")
    wrong = [row for row in rows if row.payload_differences or row.scale_differences]
    if wrong:
        first = wrong[0]
        raise SuiteFailedError(
            f"kernel bench: expected the same bits, found {_bits(first)} at {first.tokens} tokens, "
            f"EP{first.ranks}, and {len(wrong)} of {len(rows)} calls with differences"
        )


def _bits(row: KernelRow) -> str:
    if not row.payload_differences and not row.scale_differences:
        return "equal"
    return f"{row.payload_differences} codes' and {row.scale_differences} scales' words differ"
