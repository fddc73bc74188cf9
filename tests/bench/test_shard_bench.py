"""The shard bench: its verdict, and one short run on the two builds."""

from __future__ import annotations

import json
import socket
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
from headrace.errors import SuiteFailedError, SuiteVoidError
from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.template import Template
from headrace.suites.ranks.wire import Wire
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


@pytest.mark.parametrize(("option", "stage"), [("--stock", " --stock"), ("--patched", "")])
def test_a_folder_without_lmcache_is_one_line(tmp_path: Path, option: str, stage: str) -> None:
    done = headrace(
        "bench", "shard", "--quick", "--out", tmp_path / "out",
        "--stock", site("stock"), "--patched", site("patched"), option, tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        f"headrace: {option} {tmp_path}: expected a folder with lmcache/lmcache_redis*.so, "
        f"found none; build it with `.venv/bin/python build.py wheels{stage}`\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (b'{"raised": "E: one\\ntwo"}\n', "rank 0: store raised E: one two; see LOG"),
        (b"", "rank 0 ended in store; see LOG"),
        (None, "rank 0 of 1 did not return from store within 0.1 s; see LOG"),
    ],
)
def test_a_rank_that_fails_makes_the_bench_void_in_one_line(
    tmp_path: Path, answer: bytes | None, line: str
) -> None:
    pool = RankPool(Template(tmp_path / "import.log"), tmp_path, 1, show_stacks=False)
    (tmp_path / "rank-0.log").write_text("many\nlines\n")
    near, far = socket.socketpair()
    pool._wires = [Wire(near)]
    if answer is not None:
        far.sendall(answer)
        far.shutdown(socket.SHUT_WR)
    with far, near, pytest.raises(SuiteVoidError) as failed:
        pool.each("store", seconds=0.1)
    assert str(failed.value) == line.replace("LOG", str(tmp_path / "rank-0.log"))


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
