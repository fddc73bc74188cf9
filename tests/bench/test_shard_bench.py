"""The shard bench: its verdict, and one short run on the two builds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.bench.shard_result import (
    ShardComparison,
    ShardRow,
    Timing,
    raise_unless_balanced,
    shard_table_rows,
)
from headrace.errors import SuiteFailedError
from tests.suites.sites import headrace, site

TIMING = Timing(2.0, 1.0, 2.0, 1.9, 2.1)
# 20 chunks on 8 ranks: the most loaded has 3.
RESULT = ShardComparison(
    "stock", "patched", 8, 20, 100, 7, 0, 0, (ShardRow("L2", 2000, 300, TIMING, TIMING),), 1.0
)


def test_a_rank_may_store_its_share(tmp_path: Path) -> None:
    raise_unless_balanced(RESULT, tmp_path)


def test_a_rank_that_stores_more_than_its_share_fails(tmp_path: Path) -> None:
    row = replace(RESULT.rows[0], patched_most=301)
    with pytest.raises(SuiteFailedError, match="stored 301 bytes, expected at most 300"):
        raise_unless_balanced(replace(RESULT, rows=(*RESULT.rows, row)), tmp_path)


def test_a_patched_build_that_hangs_fails(tmp_path: Path) -> None:
    raise_unless_balanced(replace(RESULT, stock_hangs=3), tmp_path)
    with pytest.raises(SuiteFailedError, match="did not return 1 times"):
        raise_unless_balanced(replace(RESULT, patched_hangs=1), tmp_path)


def test_the_table_shows_both_builds() -> None:
    cells = " ".join(cell for row in shard_table_rows(RESULT) for cell in row)
    for shown in ("6.7 times fewer", "load from L2", "2.000 s", "1.000 s", "2.00 [1.90, 2.10]"):
        assert shown in cells


def test_a_short_run_on_both_builds(tmp_path: Path) -> None:
    done = headrace(
        "bench", "shard", "--quick", "--out", tmp_path,
        "--stock", site("stock"), "--patched", site("patched"), seconds=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "bench-shard.json").read_text())
    # Five chunks on two ranks: stock's rank 0 stores all of them.
    for row in result["rows"]:
        assert row["stock_most"] == 5 * result["chunk_bytes"]
        assert row["patched_most"] == 3 * result["chunk_bytes"]
