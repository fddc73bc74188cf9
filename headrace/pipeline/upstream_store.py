"""Results of upstream's test files on one site, kept so that a killed run goes on where it was."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file, hash_text, write_atomically
from headrace.pipeline.upstream_run import Bench, FileResult, Outcome, run_file


class ResultStore:
    """One folder a site under `build/upstream/`: a result and its logs for each test file.

    A result is good for as long as the site, upstream's tests, our plugins and stand-ins, the
    interpreter and the lock of the development environment are the same.

    Attributes:
        site_sha256: of all files of the site.
    """

    def __init__(
        self, layout: Layout, bench: Bench, *, server: Collection[str], run: str = ""
    ) -> None:
        self._bench = bench
        self._server = server
        self.site_sha256 = hash_code(bench.site)
        self._folder = layout.build / "upstream" / self.site_sha256[:16] / run
        lock = layout.locks / "dev.txt"
        self._key = hash_text(
            "\n".join(
                [
                    self.site_sha256,
                    hash_code(bench.sources / "tests"),
                    hash_code(bench.support / "plugin"),
                    hash_code(bench.support / "bin"),
                    *sorted(server),
                    sys.version,
                    hash_file(lock) if lock.is_file() else "no lock",
                ]
            )
        )

    def result(self, file: str) -> tuple[FileResult, bool]:
        """Return the result of `file`, and whether it was there already."""
        path = self._path(file, "json")
        stored = self._read(path)
        if stored is not None:
            return stored, True
        result = self.run(file)
        data = {"key": self._key, **dataclasses.asdict(result)}
        write_atomically(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        return result, False

    def run(self, file: str, ids: Sequence[str] = (), retry: int = 0) -> FileResult:
        """Run `file`, or only its tests `ids`, and keep nothing of it but the log."""
        log = self._path(file, f"retry{retry}.log" if retry else "log")
        return run_file(self._bench, file, log=log, server=file in self._server, ids=ids)

    def forget(self, file: str) -> None:
        """Make the next call run `file` again."""
        self._path(file, "json").unlink(missing_ok=True)

    def _path(self, file: str, suffix: str) -> Path:
        return self._folder / f"{file.removesuffix('.py').replace('/', '.')}.{suffix}"

    def _read(self, path: Path) -> FileResult | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["key"] != self._key:
                return None
            outcomes = {test: Outcome(**outcome) for test, outcome in data["outcomes"].items()}
            return FileResult(data["file"], data["origin"], data["seconds"], outcomes)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # A result that cannot be read only costs a run.
            return None


def hash_code(folder: Path) -> str:
    """Return one sha256 over names and bytes of `folder`, without what importing it leaves."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(f"{path.relative_to(folder).as_posix()} {hash_file(path)}\n".encode())
    return total.hexdigest()
