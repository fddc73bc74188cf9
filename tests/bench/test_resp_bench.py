"""The bench's statistics, its verdicts, and one short run on the two builds."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.bench.build import Build
from headrace.bench.comparison import Bandwidth, Comparison, raise_unless_passed
from headrace.bench.plan import FULL, QUICK
from headrace.bench.resp import PAIRS_A_ROUND, _row
from headrace.bench.statistics import Interval, Round, Verdict, judge, paired_ratio
from headrace.errors import SuiteFailedError, SuiteVoidError
from headrace.suites.missing_key.case import Endpoint
from tests.suites.sites import headrace, site


def noisy(seed: int, centre: float, spread: float, count: int) -> list[float]:
    draw = random.Random(seed)
    return [centre * (1 + draw.uniform(-spread, spread)) for _ in range(count)]


def rounds(stock: list[float], patched: list[float], pairs: int = 5) -> list[Round]:
    return [
        Round(stock[at : at + pairs], patched[at : at + pairs])
        for at in range(0, len(stock), pairs)
    ]


def test_the_same_times_have_the_ratio_one() -> None:
    assert paired_ratio(rounds([2.0] * 30, [2.0] * 30)) == Interval(1.0, 1.0, 1.0)


def test_a_faster_patched_build_has_a_ratio_above_one() -> None:
    assert paired_ratio(rounds([3.0] * 30, [2.0] * 30)).median == pytest.approx(1.5)


def test_noise_that_pairs_share_cancels() -> None:
    machine = noisy(1, 1.0, 0.5, 40)
    interval = paired_ratio(rounds(machine, [second * 1.01 for second in machine]))
    assert interval.low == pytest.approx(1 / 1.01)
    assert interval.high == pytest.approx(1 / 1.01)


def test_the_interval_holds_the_median_narrows_and_repeats() -> None:
    few = paired_ratio(rounds(noisy(1, 1.0, 0.2, 10), noisy(2, 1.0, 0.2, 10)))
    many = paired_ratio(rounds(noisy(1, 1.0, 0.2, 1000), noisy(2, 1.0, 0.2, 1000)))
    for interval in (few, many):
        assert interval.low <= interval.median <= interval.high
    assert many.high - many.low < few.high - few.low
    assert many.low < 1.0 < many.high
    assert paired_ratio(rounds(noisy(1, 1.0, 0.2, 10), noisy(2, 1.0, 0.2, 10))) == few


def test_luck_that_a_round_shares_widens_the_interval() -> None:
    """Two equal builds, each round off by its own 10%: one must not be called the slower."""
    luck = noisy(3, 1.0, 0.1, 8)
    patched = [factor for factor in luck for _ in range(50)]
    interval = paired_ratio(rounds([1.0] * len(patched), patched, pairs=50))
    assert interval.low < 1.0 < interval.high
    pretended = paired_ratio(rounds([1.0] * len(patched), patched, pairs=1))
    assert pretended.high - pretended.low < (interval.high - interval.low) / 2


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [Round([], [])],
        [Round([1.0], [1.0, 2.0])],
        [Round([1.0], [0.0])],
        [Round([-1.0], [1.0])],
    ],
)
def test_what_is_no_pair_is_refused(wrong: list[Round]) -> None:
    with pytest.raises(ValueError, match=r"pairs|positive"):
        paired_ratio(wrong)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.97, 1.1, "pass"), (0.9, 0.969, "fail"), (0.9, 1.1, "open"), (0.9699, 0.97, "open")],
)
def test_only_an_interval_on_one_side_decides(low: float, high: float, verdict: Verdict) -> None:
    assert judge(Interval((low + high) / 2, low, high), 0.97) == verdict


class FakeBuild:
    """Answers with the given times, over and over, and notes what it was asked."""

    def __init__(self, name: str, times: list[float], order: list[str]) -> None:
        self._name, self._times, self._order = name, times, order
        self._measured = 0
        self.sessions = 0

    def ask(self, do: str, server: Endpoint | None = None, **options: int) -> Mapping[str, Any]:
        if do == "open":
            self.sessions += 1
            return {}
        if do == "close":
            return {}
        self._order.append(self._name)
        self._measured += 1
        return {"seconds": self._times[self._measured % len(self._times)], "cpu": 0.5}


def row(stock: list[float], patched: list[float]) -> tuple[Bandwidth, list[str]]:
    order: list[str] = []
    builds = (FakeBuild("stock", stock, order), FakeBuild("patched", patched, order))
    plan = replace(FULL, counts={10**9: 1})
    server = Endpoint("127.0.0.1", 1)
    measured = _row(cast("tuple[Build, Build]", builds), server, "get", 10**9, 1, plan)
    assert builds[0].sessions == builds[1].sessions == measured.pairs / PAIRS_A_ROUND
    return measured, order


def test_a_clear_row_ends_after_the_fewest_pairs_in_changing_order() -> None:
    measured, order = row([1.0], [1.0])
    assert (measured.verdict, measured.pairs) == ("pass", FULL.pairs)
    assert measured.stock_gbps == measured.patched_gbps == 1.0
    assert measured.stock_cpu == measured.patched_cpu == 0.5
    assert order[:4] == ["stock", "patched", "patched", "stock"]
    assert order.count("stock") == order.count("patched") == FULL.pairs


def test_a_slower_build_fails() -> None:
    measured, _ = row([1.0], [1.1])
    assert (measured.verdict, measured.pairs) == ("fail", FULL.pairs)


def test_an_undecided_row_is_measured_longer_and_then_left_open() -> None:
    measured, _ = row([1.0], [0.9] * PAIRS_A_ROUND + [1.2] * PAIRS_A_ROUND)
    assert (measured.verdict, measured.pairs) == ("open", FULL.most_pairs)


def comparison(judged: bool, *verdicts: Verdict) -> Comparison:
    one = Bandwidth("get", 1, 1, 30, 1.0, 1.0, 1.0, 1.0, 1.0, "pass", 0.5, 0.5)
    rows = tuple(replace(one, verdict=verdict) for verdict in verdicts)
    return Comparison("stock", "patched", judged, 0.97, (), rows, (), 1.0)


def test_the_exit_status_follows_the_rows(tmp_path: Path) -> None:
    raise_unless_passed(comparison(True, "pass", "pass"), tmp_path)
    raise_unless_passed(comparison(False, "fail", "open"), tmp_path)
    with pytest.raises(SuiteFailedError, match="1 rows below"):
        raise_unless_passed(comparison(True, "fail", "open"), tmp_path)
    with pytest.raises(SuiteVoidError, match="1 rows undecided"):
        raise_unless_passed(comparison(True, "pass", "open"), tmp_path)


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_memory_is_bounded(plan: Any) -> None:
    assert plan.working_set() <= 1.5e9


def test_thirty_pairs_are_the_least_that_is_judged() -> None:
    assert FULL.judged
    assert FULL.pairs >= 30
    assert not QUICK.judged


def test_a_folder_without_a_client_is_refused(tmp_path: Path) -> None:
    done = headrace(
        "bench", "resp", "--stock", tmp_path, "--patched", tmp_path, "--out", tmp_path / "out"
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"headrace: --stock {tmp_path}: expected")
    assert last.endswith("build it with `.venv/bin/python build.py wheels --stock`")
    assert not list(tmp_path.iterdir()), "no empty folder is left"


@pytest.mark.timeout(240)
def test_a_quick_run_measures_both_builds(tmp_path: Path) -> None:
    done = headrace(
        "bench", "resp", "--quick", "--json", "--out", tmp_path,
        "--stock", site("stock"), "--patched", site("patched"), seconds=230,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured == json.loads((tmp_path / "bench.json").read_text())
    for miss in measured["misses"]:
        assert miss["stock_seconds"] == pytest.approx(QUICK.blocking_seconds, abs=0.5)
        assert miss["patched_seconds"] < 0.5
    assert {(row["command"], row["size"], row["threads"]) for row in measured["bandwidths"]} == {
        (command, size, threads)
        for command in ("get", "set")
        for size in QUICK.counts
        for threads in QUICK.threads
    }
    assert all(row["stock_gbps"] > 0 and row["patched_gbps"] > 0 for row in measured["bandwidths"])
    small = next(count for count in measured["receives"] if count["size"] == 4096)
    assert small["stock_calls"] == 3
    assert small["patched_calls"] <= small["stock_calls"]
