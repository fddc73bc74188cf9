"""Faults × moments of one load, and what every rank must make of each.

`cell_run` runs them. The same cells run on the release (`stock_table`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOMENTS = (
    "before the lookup",
    "between lookup and load",
    "in the local read",
    "before the exchange",
    "after the exchange",
)

# What a load may give. Chunks in a row: all of them, those before the faulty rank's second one,
# at most those before its first one (or none: any failure of a read counts from the call's begin).
ALL, SECOND, FIRST, NOTHING = "all", "second", "first", "nothing"
# A collective that fails is an error on every rank, never a number.
FATAL = "fatal"

_EXPECTED: dict[str, Sequence[str | None]] = {
    "chunk missing": (SECOND, SECOND, SECOND, ALL, ALL),
    "chunk evicted": (SECOND, SECOND, SECOND, ALL, ALL),
    "server stopped": (FIRST, FIRST, FIRST, ALL, ALL),
    "server silent": (FIRST, FIRST, FIRST, ALL, ALL),
    "wrong-size value": (SECOND, SECOND, SECOND, ALL, ALL),
    "allocator empty": (FIRST, FIRST, FIRST, ALL, ALL),
    # Raised by the lookup itself, the load after it is as good as any.
    "exception": (ALL, NOTHING, NOTHING, FATAL, FATAL),
    # Once the read has begun, the rank has what it read.
    "rank unhealthy": (NOTHING, NOTHING, ALL, ALL, ALL),
    # It is taken before the read and compared in the exchange.
    "fingerprint differs": (NOTHING, NOTHING, None, NOTHING, None),
    "request aborted": (ALL, ALL, ALL, ALL, ALL),
    "same request twice": (ALL, ALL, ALL, ALL, ALL),
}

# With asynchronous loading the lookup brings the chunks, and the load reads nothing from anywhere.
_EXPECTED_ASYNCHRONOUS: dict[str, Sequence[str | None]] = {
    "chunk missing": (SECOND, ALL, None, ALL, ALL),
    "chunk evicted": (SECOND, ALL, None, ALL, ALL),
    "server stopped": (FIRST, ALL, None, ALL, ALL),
    "server silent": (FIRST, ALL, None, ALL, ALL),
    "wrong-size value": (SECOND, ALL, None, ALL, ALL),
    "allocator empty": (FIRST, ALL, None, ALL, ALL),
    "exception": (FIRST, NOTHING, None, FATAL, FATAL),
    "rank unhealthy": (NOTHING, NOTHING, None, ALL, ALL),
    "fingerprint differs": (NOTHING, NOTHING, None, NOTHING, None),
    # What the lookup brought is gone with the request, unless a load has begun to use it.
    "request aborted": (ALL, FIRST, None, ALL, ALL),
    "same request twice": (ALL, ALL, None, ALL, ALL),
}


@dataclass(frozen=True)
class Cell:
    """One fault at one moment.

    Attributes:
        expected: what the load must give.
        asynchronous: whether the lookup brings what the load needs.
    """

    fault: str
    moment: str
    expected: str
    asynchronous: bool = False

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.moment}"


def _cells(expected: Mapping[str, Sequence[str | None]], asynchronous: bool) -> tuple[Cell, ...]:
    return tuple(
        Cell(fault, moment, what, asynchronous)
        for fault, row in expected.items()
        for moment, what in zip(MOMENTS, row, strict=True)
        if what is not None
    )


CELLS = _cells(_EXPECTED, asynchronous=False)
ASYNCHRONOUS_CELLS = _cells(_EXPECTED_ASYNCHRONOUS, asynchronous=True)


def chunks_of(world: int) -> int:
    """Return how many chunks a cell's prompt has: every rank owns two, rank 0 three."""
    return 2 * world + 1


def promised(cell: Cell) -> str | None:
    """Return what the lookups must give, None for whatever they do."""
    if cell.asynchronous and cell.moment == MOMENTS[0] and cell.fault == "rank unhealthy":
        return None
    if cell.asynchronous and cell.moment == MOMENTS[0] and cell.fault != "fingerprint differs":
        return cell.expected
    if cell.moment != MOMENTS[0] or cell.fault in (
        # A name whose value is of no use is there, and memory is wanted by the load alone. What
        # the rank takes for the prompt has only a last chunk, not its own, that is another.
        "wrong-size value",
        "allocator empty",
        "fingerprint differs",
    ):
        return ALL
    return None if cell.fault == "exception" else cell.expected


def allowed(cell: Cell, expected: str, present: int, world: int, rank: int) -> set[int | str]:
    """Return how many chunks there may be in a row, the faulty rank being `rank`.

    `present` is how many are left where a server was made to evict: it may take others too.
    """
    everything: dict[str, set[int | str]] = {
        ALL: {chunks_of(world)},
        SECOND: {present if cell.fault == "chunk evicted" else world + rank},
        FIRST: {0, rank},
        NOTHING: {0},
        FATAL: {FATAL},
    }
    return everything[expected]
