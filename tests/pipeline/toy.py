"""A checkout with one small upstream, "toy 1.0", and a series for it."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from headrace.pipeline.check import check
from headrace.pipeline.export import Commit, patch_bytes, scratch_repository, write_commits
from headrace.pipeline.git import clean_environment
from headrace.pipeline.layout import Layout
from headrace.pipeline.patchfile import file_name
from headrace.pipeline.pins import Pin, load_pins
from headrace.pipeline.problem import Problem
from headrace.pipeline.series import series_text
from headrace.pipeline.tree import Blob, Tree

ARCHIVE = b"not unpacked by any test here"
PINS = f"""\
[toy]
version = "1.0"
kind = "pypi sdist"
file = "toy-1.0.tar.gz"
sha256 = "{hashlib.sha256(ARCHIVE).hexdigest()}"
size = {len(ARCHIVE)}
license = "Apache-2.0"
flavors = ["cpu"]
patched = true
"""
FIELDS = {
    "Origin": "headrace",
    "Forwarded": "no",
    "Upstream-Status": "Inappropriate [made up]",
    "Applies-To": "toy 1.0",
    "Mode": "in-process",
    "Regression-Test": "tests/test_toy.py::test_toy",
}
NUMBERS = b"".join(b"line %d\n" % n for n in range(1, 41))
PRISTINE = {
    "toy/numbers.py": NUMBERS,
    "toy/dos.txt": b"one\r\ntwo\r\nthree\r\n",
    "toy/run.sh": b"#!/bin/sh\nexit 0\n",
    "toy/blob.bin": bytes(range(256)) * 4,
    "README": b"toy\n",
    ".gitignore": b"*.log\nbuild/\n",
    ".gitattributes": b"* text=auto eol=crlf ident\n*.py diff=python\n*.bin -diff\n",
    "toy/kept.log": b"$Id$\n",
}


class Checkout:
    """A checkout under `root`; `series` writes a series, `edit` changes a file in it."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.tree = self.layout.sources / "toy-1.0"
        self.folder = self.layout.patches / "toy"
        self.pins(PINS)
        self.write(self.tree, PRISTINE)
        (self.tree / "toy/run.sh").chmod(0o755)
        self.write(root, {"tests/test_toy.py": b"def test_toy() -> None: ...\n"})
        self.write(self.layout.sources, {"archives/toy-1.0.tar.gz": ARCHIVE})
        self.series()

    @property
    def pin(self) -> Pin:
        return load_pins(self.layout.pins).get("toy")

    def problems(self, flavor: str | None = None) -> list[Problem]:
        """Return what `check` finds; no flavor of headrace is built from one toy."""
        return check(self.layout, flavor, required={})

    def pins(self, text: str) -> None:
        self.layout.root.mkdir(parents=True, exist_ok=True)
        self.layout.pins.write_text(text)

    @staticmethod
    def write(folder: Path, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)

    def series(self, *steps: tuple[str, Mapping[str, Blob | None]]) -> None:
        """Write a series of (message or subject, files after it)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            old.unlink()
        commits = [Commit(message_of(text), files) for text, files in steps]
        names = [file_name(commit.message.partition("\n")[0]) for commit in commits]
        original = Tree(self.tree)
        touched = sorted({path for commit in commits for path in commit.files})
        base = Commit("base\n", {p: b for p in touched if (b := original.original(p))})
        with scratch_repository() as git:
            made = write_commits(git, [base, *commits])[1:]
            for name, commit in zip(names, made, strict=True):
                (self.folder / name).write_bytes(patch_bytes(git, commit))
        (self.folder / "series").write_text(series_text(names))

    def replace(self, name: str, old: str, new: str) -> None:
        """Change a text in a file of the series, once."""
        path = self.folder / name
        data = path.read_bytes()
        assert old.encode() in data
        path.write_bytes(data.replace(old.encode(), new.encode(), 1))

    def line_of(self, name: str, text: str) -> int:
        """Return the line (from 1) at which a file of the series has `text` first."""
        lines = (self.folder / name).read_text(errors="surrogateescape").split("\n")
        return next(n for n, line in enumerate(lines, 1) if text in line)

    def files(self) -> dict[str, bytes]:
        """Return the bytes of every file of the series."""
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}


def message_of(text: str, **changes: str) -> str:
    """Return `text` if it is a whole message, else a message with that subject."""
    if "\n" in text:
        return text
    fields = "".join(f"{key}: {changes.get(key, value)}\n" for key, value in FIELDS.items())
    return f"{text}\n\n{fields}\nBecause it must.\n"


def text(data: bytes, mode: str = "100644") -> Blob:
    return Blob(mode, data)


def numbers(**changes: str) -> Blob:
    """Return toy/numbers.py with some lines changed: numbers(line_3="new")."""
    lines = NUMBERS.decode().split("\n")
    for key, value in changes.items():
        lines[int(key.removeprefix("line_")) - 1] = value
    return Blob("100644", "\n".join(lines).encode())


def git(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run git as a person would in `folder`, by default one without any setting."""
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=env or clean_environment(), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout
