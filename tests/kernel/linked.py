"""Reads what a linker made: symbols, and the libraries that hold those it lacks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Literal

# Symbols of the C++ and C libraries carry their versions.
SYSTEM = re.compile(r"@(GLIBC|GLIBCXX|CXXABI|GCC)_")
# The driver's library is on the GPU's machine alone: of its functions the names have to do.
DRIVER = re.compile(r"cu[A-Z]\w+")


def symbols(path: Path, kind: Literal["defined", "undefined"]) -> set[str]:
    """Return what a library offers to others or wants of them, versions included.

    What it can do without is not wanted: weak symbols.
    """
    listed = [
        line.split() for line in _said("nm", "--dynamic", f"--{kind}-only", path).splitlines()
    ]
    return {words[-1] for words in listed if words[-2] not in "wv"}


def needed(path: Path) -> set[str]:
    """Return the libraries that a library names."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", _said("readelf", "--dynamic", "--wide", path)))


def unresolved(path: Path, others: Collection[Path]) -> set[str]:
    """Return the symbols of a library that are in none of the `others`.

    Those of the C++ and C libraries and of the GPU's driver count as there.
    """
    offered = {_plain(name) for other in others for name in symbols(other, "defined")}
    return {
        name
        for name in symbols(path, "undefined")
        if _plain(name) not in offered and not SYSTEM.search(name) and not DRIVER.fullmatch(name)
    }


def mark(made: Path, library: Path, section: str, text: str) -> None:
    """Copy `made` to `library`, with a section that holds `text`; nothing loads it."""
    note = library.with_suffix(".txt")
    note.write_text(text)
    _said("objcopy", "--add-section", f"{section}={note}", made, library)
    note.unlink()


def _plain(name: str) -> str:
    return name.partition("@")[0]


def _said(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return done.stdout
