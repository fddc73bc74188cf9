"""Runs a test file on one unpacked release, in a process of its own, and reads what it found.

Files under tests/patches/lmcache import a built LMCache. Those under tests/kernel compile sources
of FlashInfer; of these only what has a reason to fail on stock is run, on both releases.
"""

from __future__ import annotations

import ast
import functools
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import load_pins
from tests.suites.sites import ROOT, site

KERNEL = ROOT / "tests/kernel"

# Several times what a file takes; a test in it that hangs fails by its own deadline long before.
SECONDS = 420


@dataclass(frozen=True)
class Outcome:
    """What became of one test, or of one set of its parameters.

    Attributes:
        name: the test function.
        case: the same with its parameters.
        kind: "passed", "failure", "error" or "skipped".
        message: the failing assertion's, "" if it passed.
    """

    name: str
    case: str
    kind: str
    message: str


# Most of a run on stock waits for what never comes: two cores do for three.
_RUNS = ThreadPoolExecutor(max_workers=3)


@functools.cache
def started(file: Path, which: str) -> Future[tuple[Outcome, ...]]:
    """Run `file` on the "stock" or the "patched" release, beside two other runs."""
    return _RUNS.submit(_outcomes, file, which)


def outcomes(file: Path, which: str) -> tuple[Outcome, ...]:
    """Return what the run of `file` found; started now unless it was before.

    Raises:
        AssertionError: the run as a whole failed; its output is quoted.
    """
    return started(file, which).result()


def _outcomes(file: Path, which: str) -> tuple[Outcome, ...]:
    reasons = stock_reasons(file)
    if which == "stock" and not reasons:
        return ()
    name = str(file.relative_to(ROOT))
    if file.is_relative_to(KERNEL):
        folder, words = flashinfer(which), [f"{name}::{test}" for test in reasons]
    else:
        folder, words = (
            site(which),
            [name, *(["-m", "not patched_only"] if which == "stock" else [])],
        )
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        command = [
            sys.executable, "-m", "pytest", *words, f"--junitxml={report}", "--tb=short",
        ]  # fmt: skip
        environment = {
            **os.environ,
            **({} if file.is_relative_to(KERNEL) else {"PYTHONPATH": str(folder)}),
            "HEADRACE_SITE": str(folder),
            # Threads that hang on stock go on printing tracebacks, whose carets are found by
            # ast.parse. Python 3.11 shares that parser's recursion count between threads, and
            # pytest's own use of it then ends with "recursion depth mismatch".
            "PYTHONNODEBUGRANGES": "1",
        }
        output = _run(command, environment)
        assert report.is_file(), f"{file.name} on {which}: no report\n{output}"
        cases = list(ElementTree.parse(report).iter("testcase"))
    assert cases, f"{file.name} on {which}: no test ran\n{output}"
    return tuple(_outcome(case) for case in cases)


def flashinfer(which: str) -> Path:
    """Return the unpacked FlashInfer wheel, "stock" or "patched"."""
    layout = Layout(ROOT)
    folders = {"stock": layout.sources, "patched": layout.patched}
    tree = folders[which] / load_pins(layout.pins).get("flashinfer").folder
    assert tree.is_dir(), f"{tree}: expected it, found none; run: python build.py patch"
    return tree


def stock_reasons(file: Path) -> dict[str, str]:
    """Return the STOCK_REASONS of a test file: test function → pattern of its failure on stock.

    The file is read, not imported: it may need an LMCache.
    """
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == "STOCK_REASONS":
                reasons: dict[str, str] = ast.literal_eval(node.value)
                return reasons
    raise AssertionError(f"{file}: expected a module-level STOCK_REASONS, found none")


def patched_only(file: Path) -> bool:
    """Whether every test in `file` is marked to run on the patched release alone."""
    nodes = ast.parse(file.read_text()).body
    module_marks = [
        ast.unparse(node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if any("patched_only" in mark for mark in module_marks):
        return True
    tests = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    return all(any("patched_only" in ast.unparse(d) for d in t.decorator_list) for t in tests)


def _run(command: list[str], environment: dict[str, str]) -> str:
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as running:  # fmt: skip
        try:
            return running.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            # pytest's fault handler answers with the stacks of all threads.
            running.send_signal(signal.SIGABRT)
            try:
                output = running.communicate(timeout=10)[0]
            finally:
                running.kill()
            raise AssertionError(f"no end within {SECONDS} s: {command}\n{output}") from None


def _outcome(case: ElementTree.Element) -> Outcome:
    name = case.get("name", "")
    for kind in ("error", "failure", "skipped"):
        found = case.find(kind)
        if found is not None:
            return Outcome(name.partition("[")[0], name, kind, found.get("message", ""))
    return Outcome(name.partition("[")[0], name, "passed", "")
