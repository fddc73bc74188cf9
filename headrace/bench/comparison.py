"""What one run of the RESP bench measured, its verdict, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.bench.statistics import Verdict
from headrace.errors import SuiteFailedError, SuiteVoidError

Command = Literal["get", "set"]


@dataclass(frozen=True)
class Miss:
    """Time to learn through a RemoteBackend that a key is missing; median of `tries`, seconds."""

    size: int
    stock_seconds: float
    patched_seconds: float
    tries: int


@dataclass(frozen=True)
class Bandwidth:
    """One command at one value size and thread count; medians, a GB is 10^9 bytes.

    The ratio is of speeds, by the clock. `*_cpu` is what a GB costs the client in CPU seconds:
    on a busy machine it says more about the client, and the verdict leaves it out.
    """

    command: Command
    size: int
    threads: int
    pairs: int
    stock_gbps: float
    patched_gbps: float
    ratio: float
    low: float
    high: float
    verdict: Verdict
    stock_cpu: float
    patched_cpu: float


@dataclass(frozen=True)
class Receives:
    """Receive calls per GET of one value, one connection."""

    size: int
    stock_calls: float
    patched_calls: float


@dataclass(frozen=True)
class Comparison:
    """Everything that one run measured."""

    stock: str
    patched: str
    judged: bool
    floor: float
    misses: tuple[Miss, ...]
    bandwidths: tuple[Bandwidth, ...]
    receives: tuple[Receives, ...]
    seconds: float


def raise_unless_passed(result: Comparison, folder: Path) -> None:
    """Turn the verdicts into the exit status; a run that is not judged always passes.

    Raises:
        SuiteFailedError: a row is slower than the floor.
        SuiteVoidError: none is, but one stayed undecided.
    """
    if not result.judged:
        return
    failed = sum(row.verdict == "fail" for row in result.bandwidths)
    undecided = sum(row.verdict == "open" for row in result.bandwidths)
    if failed:
        raise SuiteFailedError(
            f"bench resp: {failed} rows below {result.floor} of stock; see {folder / 'bench.json'}"
        )
    if undecided:
        raise SuiteVoidError(
            f"bench resp: {undecided} rows undecided at {result.floor} of stock after "
            f"{max(row.pairs for row in result.bandwidths)} pairs; repeat on a quieter machine"
        )


def table_rows(result: Comparison) -> Iterator[Sequence[str]]:
    """Yield the lines of the printed table: what, stock, patched, ratio with interval, verdict."""
    for miss in result.misses:
        ratio = f"{miss.stock_seconds / miss.patched_seconds:.0f} times sooner"
        yield (
            f"miss, {miss.size} B",
            f"{miss.stock_seconds:.3f} s",
            f"{miss.patched_seconds:.4f} s",
            ratio,
            "",
        )
    for row in result.bandwidths:
        yield (
            f"{row.command.upper()} {row.size} B, {row.threads} threads, {row.pairs} pairs",
            f"{row.stock_gbps:.2f} GB/s, {row.stock_cpu:.3f} s",
            f"{row.patched_gbps:.2f} GB/s, {row.patched_cpu:.3f} s",
            f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]",
            row.verdict if result.judged else "not judged",
        )
    for count in result.receives:
        yield (
            f"receive calls a GET, {count.size} B",
            f"{count.stock_calls:.1f}",
            f"{count.patched_calls:.1f}",
            f"{count.patched_calls / count.stock_calls:.2f}",
            "",
        )
