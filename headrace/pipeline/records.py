"""What the build recorded about an image's content: patched files, wheels, exclusions."""

from __future__ import annotations

import base64
import csv
import io
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from pydantic import BaseModel

from headrace.errors import ConfigurationError
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pin, load_pins
from headrace.pipeline.record_file import read_record, what_broke
from headrace.pipeline.textfile import read_utf8

RECORD = re.compile(r"[^/]+\.dist-info/RECORD")


@dataclass(frozen=True)
class WheelRecord:
    """The files of one wheel that an installation copies unchanged.

    Attributes:
        name: of the distribution, canonical.
        files: sha256 (hex) by path below site-packages.
    """

    name: str
    version: str
    files: Mapping[str, str]

    @property
    def extensions(self) -> dict[str, str]:
        return {path: value for path, value in self.files.items() if path.endswith(".so")}


@dataclass(frozen=True)
class PatchRecord:
    """What the series changed in one project; sha256 by path in its tree, None if deleted."""

    project: str
    series_sha256: str
    files: Mapping[str, str | None]


class _PatchedTree(BaseModel):
    """What of a patched tree's record is used; see `tree`."""

    series_sha256: str
    files: dict[str, str | None]


def read_wheel(path: Path) -> WheelRecord:
    """Read the RECORD of a wheel.

    Raises:
        ConfigurationError: it is missing, no wheel, or names no hashes.
    """
    try:
        with zipfile.ZipFile(path) as wheel:
            # A wheel may vendor others, records and all, further down.
            names = [name for name in wheel.namelist() if RECORD.fullmatch(name)]
            text = wheel.read(names[0]).decode()
        # InvalidWheelFilename is a ValueError, and so is a RECORD that is no UTF-8.
        name, version, _, _ = parse_wheel_filename(path.name)
    except (OSError, zipfile.BadZipFile, IndexError, ValueError, zlib.error) as broken:
        raise ConfigurationError(
            f"{path}: expected a wheel with a RECORD, found {broken}; run 'python build.py wheels'"
        ) from broken
    files = {}
    for row in csv.reader(io.StringIO(text)):
        # Scripts and data files are rewritten or moved when they are installed, and byte code is
        # made anew; `patched_files` compares that with its source.
        if len(row) != 3:
            continue
        moved = ".data/" in row[0] or row[0].endswith(".pyc")
        if row[1].startswith("sha256=") and not moved:
            raw = row[1].removeprefix("sha256=")
            files[row[0]] = base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).hex()
    return WheelRecord(name, str(version), files)


def wheel_records(layout: Layout, flavor: str) -> list[WheelRecord]:
    """Return the records of our own wheels, then of every locked wheel that is not rebuilt.

    Raises:
        ConfigurationError: a wheel of the build is missing.
    """
    own = [read_wheel(path) for path in sorted(layout.wheels(flavor).glob("*.whl"))]
    rebuilt = {record.name for record in own}
    locked = [
        read_wheel(path)
        for path in sorted(layout.wheelhouse(flavor).glob("*.whl"))
        if canonicalize_name(path.name.split("-")[0]) not in rebuilt
    ]
    found = rebuilt | {record.name for record in locked}
    if missing := sorted(components(layout, flavor) - found):
        raise ConfigurationError(
            f"{layout.wheels(flavor)}, {layout.wheelhouse(flavor)}: expected a wheel of "
            f"{missing[0]}, found none; run 'python build.py fetch --flavor {flavor}', then "
            f"'python build.py wheels --flavor {flavor}'"
        )
    return [*own, *locked]


def components(layout: Layout, flavor: str) -> set[str]:
    """Return the distributions that we answer for: headrace itself, and everything pinned."""
    pins = load_pins(layout.pins).of_flavor(flavor)
    return {"headrace", *(canonicalize_name(pin.name) for pin in pins if _installed(pin))}


def _installed(pin: Pin) -> bool:
    return bool(pin.file) and not pin.only_for


def patch_records(layout: Layout, flavor: str) -> list[PatchRecord]:
    """Return what the build recorded under build/patched/ for each patched project.

    Raises:
        ConfigurationError: a record is missing or broken.
    """
    pins = load_pins(layout.pins).patched_projects(flavor)
    return [patch_record(layout, pin) for pin in pins]


def patch_record(layout: Layout, pin: Pin) -> PatchRecord:
    """Return what the build recorded of one patched project.

    Raises:
        ConfigurationError: the record is missing or broken.
    """
    path = layout.patched / f"{pin.folder}.json"
    try:
        value = _PatchedTree.model_validate(read_record(path))
    except (OSError, ValueError) as broken:
        found = what_broke(broken) if isinstance(broken, ValueError) else "no file"
        raise ConfigurationError(
            f"{path}: expected the record of a patched tree, found {found}; "
            "run 'python build.py patch'"
        ) from broken
    return PatchRecord(pin.name, value.series_sha256, value.files)


def exclusions(layout: Layout, flavor: str) -> dict[str, str]:
    """Return reason by distribution that dependencies ask for and no image of `flavor` may hold.

    They are the entries of locks/exclude.txt and locks/exclude-FLAVOR.txt; the comment lines above
    an entry are its reason, and entries without a blank line between them share it.

    Raises:
        ConfigurationError: a file is missing, or an entry is no requirement.
    """
    found: dict[str, str] = {}
    for path in layout.exclude_locks(flavor):
        found |= _read_exclusions(path)
    return found


def _read_exclusions(path: Path) -> dict[str, str]:
    try:
        lines = read_utf8(path).splitlines()
    except FileNotFoundError as missing:
        raise ConfigurationError(
            f"{path}: expected what no image may hold, found no file; restore it with git"
        ) from missing
    found: dict[str, str] = {}
    reason: list[str] = []
    fresh = True
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            reason = [*([] if fresh else reason), line.removeprefix("#").strip()]
            fresh = False
        elif re.match(r"[A-Za-z0-9]", line):
            try:
                name = canonicalize_name(Requirement(line).name)
            except InvalidRequirement as broken:
                raise ConfigurationError(
                    f"{path}:{number}: expected a requirement, found {line!r}; correct the line"
                ) from broken
            found[name] = " ".join(reason)
            fresh = True
        else:
            reason, fresh = [], True
    return found
