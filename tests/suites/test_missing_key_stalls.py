"""What was seen while the machine stood still is looked at again, and only that."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import pytest

from headrace.suites.missing_key.case import Case, Endpoint, Seen, Surroundings, WrongError
from headrace.suites.missing_key.child import STALL_MS, run_case
from headrace.suites.missing_key.stalls import StallWatch

AROUND = Surroundings(main=Endpoint("127.0.0.1", 1), prefix="p", private={}, patience=3.0)


def stand_still(milliseconds: float) -> None:
    """Sleep in C without letting another thread of this process run."""
    ctypes.PyDLL(None).usleep(int(milliseconds * 1000))


def case(run: Callable[[Surroundings], Seen]) -> Case:
    return Case(name="planted", expected="nothing wrong", run=run)


def test_a_block_that_lets_others_run_is_not_late() -> None:
    with StallWatch() as watch:
        time.sleep(0.4)
    assert watch.longest_ms < STALL_MS


@pytest.mark.parametrize("milliseconds", [300, 700])
def test_a_block_that_stands_still_is_late_by_that_much(milliseconds: int) -> None:
    with StallWatch() as watch:
        time.sleep(0.05)
        stand_still(milliseconds)
    assert milliseconds - 50 <= watch.longest_ms


def test_what_was_wrong_in_a_stall_is_looked_at_again() -> None:
    runs: list[int] = []

    def run(_: Surroundings) -> Seen:
        runs.append(1)
        if len(runs) == 1:
            stand_still(2 * STALL_MS)
            raise WrongError("timed out before the reply")
        return Seen("right")

    assert run_case(case(run), AROUND)["verdict"] == "green"
    assert len(runs) == 2


def test_what_is_wrong_each_time_is_red_and_says_that_the_machine_stood_still() -> None:
    runs: list[int] = []

    def run(_: Surroundings) -> Seen:
        runs.append(1)
        stand_still(2 * STALL_MS)
        raise WrongError("timed out before the reply")

    result = run_case(case(run), AROUND)
    assert result["verdict"] == "red"
    assert len(runs) == 3
    assert "timed out before the reply (3 times; this machine stood still for" in result["seen"]


def test_what_is_wrong_on_a_running_machine_is_red_at_once() -> None:
    runs: list[int] = []

    def run(_: Surroundings) -> Seen:
        runs.append(1)
        time.sleep(0.1)
        raise WrongError("foreign bytes")

    result = run_case(case(run), AROUND)
    assert (result["verdict"], result["seen"]) == ("red", "foreign bytes")
    assert len(runs) == 1
