"""What a run of upstream's tests found: as a table, as JSON, and as a verdict."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.console import say
from headrace.errors import SuiteFailedError
from headrace.pipeline.manifest import write_atomically
from headrace.pipeline.upstream_baseline import Regression
from headrace.pipeline.upstream_run import ERROR, FAILED, PASSED, SKIPPED, TIMEOUT, FileResult

Scope = Literal["touched", "all"]
SHOWN = (PASSED, SKIPPED, FAILED, ERROR, TIMEOUT)
LISTED = 20


@dataclass(frozen=True)
class FileReport:
    """One file against the baseline.

    Attributes:
        stored: the result is one of an earlier run.
        retried: test id → how it failed, for what passed when it was repeated.
        changes: test id → "skipped → passed" and the like: no regression, but not as on stock.
    """

    result: FileResult
    stored: bool
    regressions: Sequence[Regression]
    retried: Mapping[str, str]
    changes: Mapping[str, str]


@dataclass(frozen=True)
class UpstreamReport:
    """One run; `path` holds the same as JSON."""

    scope: Scope
    site: Path
    site_sha256: str
    seconds: float
    files: Sequence[FileReport]
    path: Path

    @property
    def regressions(self) -> list[Regression]:
        return [regression for report in self.files for regression in report.regressions]

    def as_json(self) -> dict[str, Any]:
        """Return what `path` holds."""
        return {
            "schema": 1,
            "scope": self.scope,
            "site": str(self.site),
            "site_sha256": self.site_sha256,
            "lmcache": sorted({report.result.origin for report in self.files}),
            "verdict": "red" if self.regressions else "green",
            "seconds": round(self.seconds, 1),
            "regressions": [dataclasses.asdict(regression) for regression in self.regressions],
            "flaky": {test: why for report in self.files for test, why in report.retried.items()},
            "changes": {test: how for report in self.files for test, how in report.changes.items()},
            "files": [
                {
                    "file": report.result.file,
                    "counts": report.result.counts,
                    "seconds": report.result.seconds,
                    "stored": report.stored,
                }
                for report in self.files
            ],
        }

    def write(self) -> None:
        """Write `path`."""
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False)
        write_atomically(self.path, text + "\n")

    def show(self) -> None:
        """Print a table of the files, then what differs from stock."""
        say(f"upstream's tests on {self.site}")
        width = max(len(report.result.file) for report in self.files)
        say(f"{'file':<{width}}" + "".join(f"{heading:>9}" for heading in (*SHOWN, "worse", "s")))
        for report in self.files:
            counts = [str(report.result.counts.get(status, "")) for status in SHOWN]
            seconds = "kept" if report.stored else f"{report.result.seconds:.0f}"
            cells = (*counts, str(len(report.regressions) or ""), seconds)
            say(f"{report.result.file:<{width}}" + "".join(f"{cell:>9}" for cell in cells))
        for report in self.files:
            for test, why in report.retried.items():
                say(f"flaky: {test}: {why}")
            for test, how in report.changes.items():
                say(f"changed: {test}: {how}")
        for regression in self.regressions[:LISTED]:
            say(f"REGRESSION: {regression.id}: {regression.expected} → {regression.seen}")
        say(f"{len(self.regressions)} regressions in {len(self.files)} files; report: {self.path}")

    def require_green(self) -> None:
        """Raise SuiteFailedError if there is a regression."""
        if self.regressions:
            first = self.regressions[0]
            why = f" ({first.text})" if first.text else ""
            raise SuiteFailedError(
                f"{first.id}: expected '{first.expected}' as on stock, found '{first.seen}'{why}; "
                f"{len(self.regressions)} such in all, see {self.path}"
            )
