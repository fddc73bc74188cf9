"""The workset kernel gives the release's bits, and these are right.

The order of threads and blocks is turned round and shuffled. Padding rows hold NaNs, and where a
row is whole pages they cannot be read at all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel import cases
from tests.kernel.activation import (
    ORDERS,
    differences,
    reference_problems,
    run,
    stray_writes,
    workset_kernel,
)

each_case = pytest.mark.parametrize("name", cases.CASES)


@each_case
def test_the_bits_are_those_of_the_release(name: str, stock: Path, ours: Path) -> None:
    call = cases.CASES[name]()
    wanted = run(stock, call)
    assert wanted.launch.kernel == "activationDeepSeekKernel"
    for order in ORDERS:
        found = run(ours, call, order)
        assert found.launch.kernel == workset_kernel(call)
        assert found.launch.left_behind == 0
        assert not differences(found, wanted), f"{order}: {differences(found, wanted)}"
        assert stray_writes(call, found) == 0, order


@pytest.mark.parametrize("name", [n for n in cases.CASES if n not in cases.BEYOND_THE_REFERENCE])
def test_the_bits_are_right(name: str, ours: Path) -> None:
    call = cases.CASES[name]()
    assert not reference_problems(call, run(ours, call))
