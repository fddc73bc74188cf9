"""Every wrong version of the kernel is noticed; what is not noticed, the numerics do not prove."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernel import cases, toolchain
from tests.kernel.activation import (
    ORDERS,
    Call,
    Result,
    RunFailedError,
    differences,
    run,
    stray_writes,
    waits_of_one_pass,
)
from tests.kernel.mutants import MUTANTS, mutants_runner
from tests.kernel.test_workset import UNSERVED

CALLS = {
    **{
        name: cases.CASES[name]()
        for name in ("width-of-the-post", "tile-10", "3-column-blocks", "zero-blocks", "gate-abl")
    },
    "no-metadata": UNSERVED["no-metadata"](),
    "rows-not-at-16-bytes": UNSERVED["rows-not-at-16-bytes"](),
    "few-resident-blocks": replace(cases.expert_parallel(60, 1), multiprocessors=1, blocks_each=5),
}


@pytest.fixture(scope="module")
def program() -> Path:
    return mutants_runner(toolchain.patched_tree())


@pytest.fixture(scope="module")
def wanted(stock: Path) -> dict[str, Result]:
    return {name: run(stock, call) for name, call in CALLS.items()}


def complaint(program: Path, call: Call, wanted: Result, mutant: int) -> str:
    """Say what the tests would find wrong with a mutant's run of `call`; "" if nothing."""
    for order in ORDERS:
        try:
            found = run(program, call, order, mutant)
        except RunFailedError as failed:
            return str(failed)
        if wrong := differences(found, wanted):
            return wrong
        if stray := stray_writes(call, found):
            return f"{stray} stray writes"
        if found.launch.pdl and not found.launch.synchronized:
            return "did not wait"
        if call.has_workset and call.misalign == 0:
            if found.launch.blocks > max(call.multiprocessors * call.blocks_each, 4):
                return f"{found.launch.blocks} blocks"
            if found.launch.waits != waits_of_one_pass(call):
                return f"{found.launch.waits} waits"
        elif found.launch.kernel != wanted.launch.kernel:
            return found.launch.kernel
    return ""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name: str, program: Path, wanted: dict[str, Result]) -> None:
    number = list(MUTANTS).index(name) + 1
    assert any(complaint(program, CALLS[each], wanted[each], number) for each in CALLS)


def test_the_right_version_is_not_complained_of(program: Path, wanted: dict[str, Result]) -> None:
    complaints = {each: complaint(program, CALLS[each], wanted[each], 0) for each in CALLS}
    assert not any(complaints.values()), complaints
