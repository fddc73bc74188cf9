"""What goes into an image, laid out for the Dockerfile: one folder for each named context.

The folders hold exactly what the locks name, as hard links, so that a stray file in a download
folder can neither reach the image nor spoil the build cache.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from headrace.console import disk_error
from headrace.errors import ConfigurationError, ImageError
from headrace.pipeline.debian import RUNTIME_PACKAGES, TOOL_PACKAGES, debs_folder
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.textfile import read_utf8

LOCK_LINE = re.compile(r"([A-Za-z0-9._-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*")
# One image layer each, what changes least first.
WHEEL_LAYERS = ("torch", "engine", "headrace")
APT_CONF = """\
Dir::Etc::SourceList "/mnt/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "/tmp/lists";
Dir::Cache "/tmp/cache";
"""
FLAT_SOURCE = "deb [trusted=yes] file:/mnt ./\n"


@dataclass(frozen=True)
class Requirement:
    """One line of a lock: a distribution, its version, and the sha256 of files that may serve."""

    name: str
    version: Version
    hashes: frozenset[str]


def read_requirements(path: Path) -> list[Requirement]:
    """Read a lock of lines "name==version --hash=sha256:…", which a backslash may continue.

    Raises:
        ConfigurationError: it is missing, or an entry has another form or no hash.
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
        match = re.fullmatch(
            r"([A-Za-z0-9._-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line
        )
        if match is None:
            raise ConfigurationError(
                f"{path}: expected 'name==version --hash=sha256:…', found {line[:80]!r}"
            )
        hashes = frozenset(re.findall(r"[0-9a-f]{64}", match[3]))
        found.append(Requirement(canonicalize_name(match[1]), Version(match[2]), hashes))
    return found


def stage_contexts(layout: Layout, flavor: str) -> Path:
    """Lay out the contexts of `flavor` below build/context/FLAVOR; return that folder.

    Raises:
        ImageError: a locked wheel is not in the wheelhouse, or headrace's own are not built.
        MachineError: the disk is full.
    """
    folder = layout.build / "context" / flavor
    locked = match_wheels(
        read_requirements(layout.locks / f"{flavor}.txt"), layout.wheelhouse(flavor), flavor
    )
    own = {path: hash_file(path) for path in _own_wheels(layout, flavor)}
    torch = {path: sha for path, sha in locked.items() if path.name.startswith("torch-")}
    engine = {path: sha for path, sha in locked.items() if path not in torch}
    partial = folder.with_name(f".{flavor}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for name, wheels in zip(WHEEL_LAYERS, (torch, engine, own), strict=True):
            _stage(partial / name, wheels)
            (partial / name / "requirements.txt").write_text(format_requirements(wheels))
        _stage(partial / "debs", debs_folder(layout).glob("*.deb"))
        _stage(partial / "debs", [debs_folder(layout) / "Packages"])
        (partial / "debs" / "apt.conf").write_text(APT_CONF)
        (partial / "debs" / "sources.list").write_text(FLAT_SOURCE)
        (partial / "debs" / "runtime.txt").write_text("\n".join(RUNTIME_PACKAGES) + "\n")
        (partial / "debs" / "tools.txt").write_text("\n".join(TOOL_PACKAGES) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


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


def _own_wheels(layout: Layout, flavor: str) -> list[Path]:
    wheels = sorted(layout.wheels(flavor).glob("*.whl"))
    names = [path.name.split("-")[0] for path in wheels]
    if not {"headrace", "lmcache"} <= set(names) or len(names) != len(set(names)):
        raise ImageError(
            f"{layout.wheels(flavor)}: expected one wheel of headrace, of lmcache, …, found "
            f"{', '.join(names) or 'none'}; run `python build.py wheels --flavor {flavor}`"
        )
    return wheels


def _stage(folder: Path, files: Iterable[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        target = folder / path.name
        try:
            os.link(path, target)
        except OSError:
            # Another file system, or one without hard links.
            shutil.copy2(path, target)
