"""Proofs run as they do in an image: in a process of their own, with a made-up site folder."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


class Site:
    """A folder of installed distributions that one interpreter sees, and a runner of proofs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def install(self, name: str, files: Mapping[str, str], *, requires: Sequence[str] = ()) -> None:
        """Write `files` and the metadata of a distribution `name` 1.0."""
        for relative, text in files.items():
            path = self.folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        info = self.folder / f"{name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
        lines += [f"Requires-Dist: {text}" for text in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        with (info / "RECORD").open("w", newline="") as stream:
            csv.writer(stream).writerows([relative, "", ""] for relative in files)

    def prove(
        self, proof: str, request: Mapping[str, Any], *, earlier: Sequence[Path] = ()
    ) -> dict[str, Any]:
        """Run one proof with `earlier` folders before the site on `sys.path`."""
        done = self.run([proof], json.dumps(request), earlier=earlier)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def run(
        self, words: Sequence[str], stdin: str, *, earlier: Sequence[Path] = ()
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(str(part) for part in (*earlier, self.folder, CHECKOUT))
        return subprocess.run(
            [sys.executable, "-m", "headrace.proof", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.folder.parent,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder.parent),
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")
