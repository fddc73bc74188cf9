"""Upstream's own tests on a site: nothing that passes on the stock release may fail on ours."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import TypeVar

import filelock
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.console import console, say
from headrace.errors import ConfigurationError, MachineError
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import write_atomically
from headrace.pipeline.pins import Pin, load_pins
from headrace.pipeline.upstream_baseline import (
    Baseline,
    Touched,
    changes,
    compare,
    format_baseline,
    merge_runs,
    read_baseline,
    read_touched,
)
from headrace.pipeline.upstream_report import FileReport, Scope, UpstreamReport
from headrace.pipeline.upstream_run import (
    PASSED,
    SKIPPED,
    Bench,
    FileResult,
    Limits,
    end_leftovers,
    end_marked,
)
from headrace.pipeline.upstream_store import ResultStore

T = TypeVar("T")
# Fresh processes for a test that failed: a known flaky one has to pass in one of three.
RETRIES, FLAKY_RETRIES = 1, 3


def run_upstream(
    layout: Layout,
    *,
    scope: Scope,
    site: Path,
    jobs: int = 2,
    python: Path = Path(sys.executable),
    limits: Limits | None = None,
) -> UpstreamReport:
    """Run upstream's tests against the `lmcache` in `site`, compare with stock, write the report.

    Results are kept under `build/upstream/`: a run that is killed goes on where it stopped, and a
    second run of the same bytes has nothing to do. A file with a failure is not kept.

    Args:
        scope: "touched" for the files that exercise what the series changes, "all" for every file
            that tests/upstream/touched.toml lists under `cpu`.
        site: e.g. build/site/patched; holds `lmcache/`.
        jobs: files at a time.
        python: an interpreter with LMCache's runtime and test dependencies.
        limits: seconds for a test, a file and its end.

    Raises:
        ConfigurationError: no baseline, or touched.toml does not cover a changed source.
        VerificationError: the tests would run on another `lmcache`.
        MachineError: another run of this checkout is at work, or the disk is full.
    """
    started = time.monotonic()
    pin = load_pins(layout.pins).get("lmcache")
    bench = _bench(layout, pin, site, python, limits)
    touched = read_touched(bench.support / "touched.toml")
    touched.check(bench.sources)
    baseline = read_baseline(_baseline_path(bench, pin))
    files = list(touched.cpu) if scope == "all" else _touched_files(layout, touched, pin)
    store = ResultStore(layout, bench, server=touched.server)

    def judge(file: str) -> FileReport:
        return _judge(store, baseline, file)

    with _alone(layout, bench):
        reports = list(_each(bench, judge, files, jobs, f"upstream's tests ({scope})"))
    report = UpstreamReport(
        scope=scope,
        site=site,
        site_sha256=store.site_sha256,
        seconds=time.monotonic() - started,
        files=sorted(reports, key=lambda one: one.result.file),
        path=layout.build / "upstream" / "report.json",
    )
    report.write()
    report.show()
    return report


def record_baseline(
    layout: Layout,
    *,
    site: Path,
    runs: int = 3,
    jobs: int = 1,
    python: Path = Path(sys.executable),
    limits: Limits | None = None,
) -> Path:
    """Run all files on the stock release in `site` and write the baseline of the pinned version.

    A file is run `runs` times if it exercises what the series changes or if a test of it neither
    passed nor was skipped the first time. A test whose outcomes differ is recorded as flaky. Every
    run is kept, so that a killed call goes on where it stopped.
    """
    pin = load_pins(layout.pins).get("lmcache")
    bench = _bench(layout, pin, site, python, limits)
    touched = read_touched(bench.support / "touched.toml")
    touched.check(bench.sources)
    results: list[FileResult] = []
    with _alone(layout, bench):
        for number in range(1, runs + 1):
            store = ResultStore(layout, bench, server=touched.server, run=f"run-{number}")
            files = touched.cpu if number == 1 else _run_again(results, touched)
            what = f"stock, run {number} of {runs}"
            results += [result for result, _ in _each(bench, store.result, files, jobs, what)]
    baseline = merge_runs(pin.version, results, touched.flaky)
    path = _baseline_path(bench, pin)
    write_atomically(path, format_baseline(baseline))
    statuses = [s for file, tests in baseline.files.items() for t, s in tests.items() if t != file]
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    say(f"{path}: {len(baseline.files)} files, {len(statuses)} tests: {counts}")
    return path


def _bench(layout: Layout, pin: Pin, site: Path, python: Path, limits: Limits | None) -> Bench:
    sources = layout.sources / pin.folder
    for path, advice in (
        (sources / "tests", "run 'python build.py fetch'"),
        (site / "lmcache", "run 'python build.py wheels'"),
    ):
        if not path.is_dir():
            raise ConfigurationError(f"{path}: expected a folder, found none; {advice}")
    return Bench(layout.root, sources, site.resolve(), python, limits or Limits())


def _baseline_path(bench: Bench, pin: Pin) -> Path:
    return bench.support / f"baseline-{pin.folder}.json"


def _touched_files(layout: Layout, touched: Touched, pin: Pin) -> list[str]:
    record = layout.patched / f"{pin.folder}.json"
    if not record.is_file():
        raise ConfigurationError(
            f"{record}: expected the record of what the series changes, found none; "
            "run 'python build.py patch'"
        )
    changed = list(json.loads(record.read_text(encoding="utf-8"))["files"])
    files = touched.tests_of(changed)
    if not files:
        raise ConfigurationError(
            f"{record}: expected changed files, found none, so that no test would run; "
            "run 'python build.py patch'"
        )
    return files


def _run_again(results: Sequence[FileResult], touched: Touched) -> list[str]:
    unsteady = {
        result.file
        for result in results
        if any(one.status not in (PASSED, SKIPPED) for one in result.outcomes.values())
    }
    return sorted(unsteady.union(*(tests for _, tests in touched.groups)))


def _judge(store: ResultStore, baseline: Baseline, file: str) -> FileReport:
    """Run one file and repeat what failed in fresh processes before calling it a regression."""
    result, stored = store.result(file)
    regressions = {found.id: found for found in compare(baseline, result)}
    retried: dict[str, str] = {}
    for retry in range(1, FLAKY_RETRIES + 1):
        due = [test for test in regressions if retry <= RETRIES or test in baseline.flaky]
        if not due:
            break
        # What never came to a result has no id of its own to run.
        whole = file in due or any(test not in result.outcomes for test in due)
        again = store.run(file, [] if whole else due, retry)
        for test in due:
            if test in again.outcomes and again.outcomes[test].status == PASSED:
                first = regressions.pop(test)
                retried[test] = f"{first.seen} ({first.text}), passed in fresh process {retry}"
    if regressions or retried:
        store.forget(file)
    return FileReport(
        result, stored, list(regressions.values()), retried, changes(baseline, result)
    )


@contextlib.contextmanager
def _alone(layout: Layout, bench: Bench) -> Iterator[None]:
    """Hold the results for one run, and end what an earlier one left when it was killed."""
    folder = layout.build / "upstream"
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as busy:
        raise MachineError(
            f"{lock.lock_file}: another run of upstream's tests holds this checkout; "
            "wait for its end and run the command again"
        ) from busy
    try:
        end_leftovers(bench)
        yield
    finally:
        lock.release()


def _each(
    bench: Bench, work: Callable[[str], T], files: Sequence[str], jobs: int, what: str
) -> Iterator[T]:
    """Yield `work(file)` as each is done. The first error, or Ctrl-C, ends all that runs."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=not console.is_terminal,
    )  # fmt: skip
    with progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task(what, total=len(files))
        futures = {pool.submit(work, file): file for file in files}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                done = future.result()
                progress.advance(task)
                say(f"{what}: {number}/{len(files)} {futures[future]}")
                yield done
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # Again and again, because a thread may be just about to start its process.
            while wait(futures, timeout=0.2).not_done:
                end_marked(bench.mark)
            raise
