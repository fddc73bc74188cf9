"""Each regression test fails on the pinned release, for the reason it declares, and passes on the
patched one. A patch without such a test proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import load_pins
from headrace.pipeline.series import read_series
from tests.patches.site_run import outcomes, patched_only, started, stock_reasons
from tests.suites.sites import ROOT

LAYOUT = Layout(ROOT)
PATCHES = [
    patch
    for pin in load_pins(LAYOUT.pins).patched_projects()
    for patch in read_series(LAYOUT, pin.id).patches
]
KERNEL_FILES = {
    ROOT / test.partition("::")[0]
    for patch in PATCHES
    for test in patch.regression_tests
    if test.startswith("tests/kernel/")
}
FILES = [*sorted((ROOT / "tests/patches/lmcache").glob("test_*.py")), *sorted(KERNEL_FILES)]

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@pytest.fixture(scope="module", autouse=True)
def ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start what the tests will ask for, in their order."""
    on_stock = test_stock_fails_for_the_declared_reason.__name__
    runs = [
        started(
            item.callspec.params["file"], "stock" if item.originalname == on_stock else "patched"
        )
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
        if hasattr(item, "callspec")
    ]
    yield
    for run in runs:
        run.cancel()


# The default of five minutes covers the many waits of a run on stock only just.
@pytest.mark.timeout(480)
@each_file
def test_stock_fails_for_the_declared_reason(file: Path) -> None:
    reasons = stock_reasons(file)
    assert reasons or patched_only(file), f"{file.name}: declares no reason to fail on stock"
    problems = []
    for outcome in outcomes(file, "stock"):
        wanted = reasons.get(outcome.name)
        if wanted is None:
            problems.append(f"{outcome.case}: declares no reason to fail on stock")
        elif outcome.kind != "failure":
            problems.append(f"{outcome.case}: expected a failure, found {outcome.kind}")
        elif not re.search(wanted, outcome.message):
            problems.append(f"{outcome.case}: expected {wanted!r}, found {outcome.message!r}")
    for name in reasons.keys() - {outcome.name for outcome in outcomes(file, "stock")}:
        problems.append(f"{name}: has a reason to fail on stock, and was not run there")
    assert not problems, "\n".join(problems)


@pytest.mark.timeout(480)
@each_file
def test_patched_passes(file: Path) -> None:
    found = outcomes(file, "patched")
    problems = [
        f"{each.case}: {each.kind}: {each.message}" for each in found if each.kind != "passed"
    ]
    for name in stock_reasons(file).keys() - {outcome.name for outcome in found}:
        problems.append(f"{name}: not run on the patched release")
    assert not problems, "\n".join(problems)


def test_every_patch_names_a_test_that_is_run_on_both() -> None:
    proving = {
        f"{file.relative_to(ROOT)}::{name}" for file in FILES for name in stock_reasons(file)
    }
    for patch in PATCHES:
        assert patch.regression_tests, f"{patch.where}: names no regression test"
        for test in patch.regression_tests:
            assert test in proving, f"{patch.where}: {test} is not run on stock and on patched"
