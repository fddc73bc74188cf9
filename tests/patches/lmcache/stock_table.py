"""`python -m tests.patches.lmcache.stock_table SITE`: what the release makes of every cell.

Writes stock_table.json, which is committed: a run takes minutes, and the release does not change.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.template import Template
from tests.patches.lmcache.cell_run import (
    EVICTING,
    STOCK_DEADLINE,
    TABLE,
    Seen,
    cell_settings,
    problems_of,
    run_cell,
)
from tests.patches.lmcache.rank_pool import MODULE
from tests.patches.lmcache.sharded_cells import CELLS, FATAL, MOMENTS, Cell, chunks_of

WORLD = 3
# Rank 0 does all the work there; a fault elsewhere would be none.
RANK = 0
# The release loses completions, and then hangs in a lookup before the fault gets its turn.
TRIES = 8


def main() -> None:
    """Run all cells on the release in `SITE` and write the table."""
    site = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="headrace-stock-") as scratch:
        folder = Path(scratch)
        with (
            Template(folder / "import.log", site, MODULE) as template,
            Shards(WORLD, *EVICTING) as shards,
            RankPool(template, folder, WORLD, patience=STOCK_DEADLINE) as pool,
        ):
            rows = list(_rows(pool, shards))
    about = {
        "release": f"lmcache {_version(site)}",
        "ranks": WORLD,
        "chunks": chunks_of(WORLD),
        "faulty rank": RANK,
        "seconds until a command counts as hung": STOCK_DEADLINE,
    }
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps(about, indent=1).removesuffix("\n}")
    TABLE.write_text(f'{head},\n "cells": [\n{lines}\n ]\n}}\n')
    wrong = sum(not row["ok"] for row in rows)
    print(f"{TABLE}: {wrong} of {len(rows)} cells are not as they must be")


def _rows(pool: RankPool, shards: Shards) -> Iterator[dict[str, Any]]:
    settings = cell_settings(shards)
    for cell in CELLS:
        if cell.fault == "fingerprint differs" and cell.moment == MOMENTS[3]:
            # The release's ranks compare nothing.
            yield _row(cell, "-", 0.0, "-", ok=True)
            continue
        for _ in range(TRIES):
            pool.restart(settings)
            seen = run_cell(pool, shards, settings, cell, RANK, STOCK_DEADLINE)
            lost = any(f"from {do}" in seen.hung + seen.after for do in ("lookup", "act"))
            if not lost or (cell.fault, cell.moment) == ("server silent", MOMENTS[0]):
                break
        problems = problems_of(seen, cell, WORLD, RANK, settings.chunk_size)
        row = _row(
            cell,
            _stock(seen, settings.chunk_size),
            seen.seconds,
            seen.after or ("-" if seen.hung else "works"),
            ok=not problems,
        )
        print(json.dumps(row), flush=True)
        yield row


def _row(cell: Cell, stock: str, seconds: float, after: str, *, ok: bool) -> dict[str, Any]:
    return {
        "fault": cell.fault,
        "moment": cell.moment,
        "must": _must(cell),
        "stock": stock,
        "seconds": round(seconds, 1),
        "next request": after,
        "ok": ok,
    }


def _must(cell: Cell) -> str:
    return {
        "all": f"{chunks_of(WORLD)} chunks",
        "second": f"{WORLD + RANK} chunks",
        "first": "0 chunks",
        "nothing": "0 chunks",
        FATAL: "an error on every rank",
    }[cell.expected]


def _stock(seen: Seen, chunk_size: int) -> str:
    if seen.hung:
        return f"hang: {seen.hung}"
    wrong = any(load.get("wrong") or load.get("strayed") for load in seen.loads)
    results = [
        "error" if "raised" in load else str(load["tokens"] // chunk_size) for load in seen.loads
    ]
    same = f"{results[0]} chunks" if len(set(results)) == 1 else f"by rank: {', '.join(results)}"
    return f"wrong bytes, {same}" if wrong else same


def _version(site: Path) -> str:
    found = sorted(site.glob("lmcache-*.dist-info"))
    return found[0].name.split("-")[1].removesuffix(".dist") if found else "of unknown version"


if __name__ == "__main__":
    main()
