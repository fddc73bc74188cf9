"""The lines of a Python lock, and the wheels that they admit."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from headrace.errors import ConfigurationError, ImageError
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.textfile import read_utf8

LOCK_LINE = re.compile(r"([A-Za-z0-9._-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*")


@dataclass(frozen=True)
class Requirement:
    """One line of a lock: a distribution, its version, and the sha256 of files that may serve."""

    name: str
    version: Version
    hashes: frozenset[str]

    def __str__(self) -> str:
        hashes = " ".join(f"--hash=sha256:{value}" for value in sorted(self.hashes))
        return f"{self.name}=={self.version} {hashes}"


def read_requirements(path: Path) -> list[Requirement]:
    """Read a lock of lines "name==version --hash=sha256:…", which a backslash may continue.

    Raises:
        ConfigurationError: it is missing or empty, or an entry has another form or no hash.
    """
    try:
        text = read_utf8(path).replace("\\\n", " ")
    except FileNotFoundError as missing:
        raise ConfigurationError(
            f"{path}: expected the lock of this flavor, found no file; "
            "run `python build.py lock python`"
        ) from missing
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = LOCK_LINE.fullmatch(line)
        if match is None:
            raise ConfigurationError(
                f"{path}: expected 'name==version --hash=sha256:…', found {line[:80]!r}"
            )
        try:
            version = Version(match[2])
        except InvalidVersion as wrong:
            raise ConfigurationError(
                f"{path}: {match[1]}: expected a version, found {match[2][:80]!r}"
            ) from wrong
        hashes = frozenset(re.findall(r"[0-9a-f]{64}", match[3]))
        found.append(Requirement(canonicalize_name(match[1]), version, hashes))
    if not found:
        raise ConfigurationError(
            f"{path}: expected what the flavor consists of, found no entry; "
            "run `python build.py lock python`"
        )
    return found


def match_wheels(
    requirements: Iterable[Requirement], wheelhouse: Path, flavor: str
) -> dict[Path, str]:
    """Return the wheel of each requirement with its sha256, checked against the lock.

    Raises:
        ImageError: one is missing or has another hash; names the first.
    """
    advice = f"run `python build.py fetch --flavor {flavor}`"
    there: dict[tuple[str, Version], list[Path]] = {}
    for path in sorted(wheelhouse.glob("*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as wrong:
            raise ImageError(f"{path}: expected a wheel, found {wrong}; {advice}") from wrong
        there.setdefault((name, version), []).append(path)
    chosen = {}
    for wanted in requirements:
        candidates = there.get((wanted.name, wanted.version), [])
        hashed = {path: hash_file(path) for path in candidates}
        good = [path for path, sha in hashed.items() if sha in wanted.hashes]
        if not good:
            found = ", ".join(f"{p.name} sha256 {sha}" for p, sha in hashed.items()) or "no file"
            raise ImageError(
                f"{wheelhouse}: expected {wanted.name} {wanted.version} with a locked sha256, "
                f"found {found}; {advice}"
            )
        chosen[good[0]] = hashed[good[0]]
    return chosen


def format_requirements(wheels: dict[Path, str]) -> str:
    """Return pip requirements that admit exactly these files."""
    lines = []
    for path, sha256 in wheels.items():
        name, version, _, _ = parse_wheel_filename(path.name)
        lines.append(f"{name}=={version} --hash=sha256:{sha256}\n")
    return "".join(sorted(lines))


def link_or_copy(path: Path, target: Path) -> None:
    """Make `target` a hard link to `path`, or a copy where the file systems cannot."""
    try:
        os.link(path, target)
    except OSError:
        # Another file system, or one without hard links.
        shutil.copy2(path, target)
