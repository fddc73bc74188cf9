"""Read a project's patch series and apply it: checked as a whole first, written second."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from headrace.console import disk_error
from headrace.errors import SourceError
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import write_atomically
from headrace.pipeline.newfolder import new_folder
from headrace.pipeline.patchfile import PatchFile, read_patch
from headrace.pipeline.pins import Pin
from headrace.pipeline.problem import Problem, ProblemsError
from headrace.pipeline.resolve import resolve
from headrace.pipeline.sources import source_tree
from headrace.pipeline.tree import Blob

FIRST_LINE = "# Written by `python build.py refresh`: the order of application, one patch a line.\n"
_ENTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.patch")


@dataclass(frozen=True)
class Series:
    """The patches of one project in order.

    Attributes:
        path: the `series` file.
        patches: those that can be read.
        unbroken: how many of them stand before the first one that cannot.
    """

    project: str
    path: Path
    patches: tuple[PatchFile, ...]
    unbroken: int

    @property
    def sha256(self) -> str:
        """One hash over the names, the order and the bytes of all patches."""
        text = "".join(f"{patch.sha256}  {patch.name}\n" for patch in self.patches)
        return hashlib.sha256(text.encode()).hexdigest()


def series_path(layout: Layout, project: str) -> Path:
    """Return the file that lists a project's patches."""
    return layout.patches / project / "series"


def series_text(names: list[str]) -> str:
    """Return the content of a `series` file."""
    return FIRST_LINE + "".join(f"{name}\n" for name in names)


def load_series(layout: Layout, project: str) -> tuple[Series, list[Problem]]:
    """Read what can be read of a series, and return it with every problem of its files."""
    path = series_path(layout, project)
    where = path.relative_to(layout.root).as_posix()
    run = f"`python build.py refresh {project}` or correct {where}"
    problems: list[Problem] = []
    patches: list[PatchFile] = []
    seen: set[str] = set()
    unbroken: int | None = None
    try:
        # Bytes first: reading as text would hide CRLF line ends.
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        problems.append(Problem(where, 1, "the order of this project's patches", "no file", run))
        text = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line in seen:
            problems.append(Problem(where, number, "each patch once", f"{line} twice", run))
            continue
        seen.add(line)
        if not _ENTRY.fullmatch(line):
            wanted = "the name of a patch file beside this one"
            problems.append(Problem(where, number, wanted, repr(line), run))
        elif (path.parent / line).is_symlink():
            problems.append(Problem(where, number, f"a file {line}", "a symbolic link", run))
        elif not (path.parent / line).is_file():
            problems.append(Problem(where, number, f"a file {line}", "none", run))
        else:
            try:
                patches.append(read_patch(path.parent / line, layout.root))
                problems += patches[-1].problems
                continue
            except ProblemsError as broken:
                problems += broken.problems
        unbroken = len(patches) if unbroken is None else unbroken
    if unbroken is None:
        unbroken = len(patches)
    return Series(project, path, tuple(patches), unbroken), problems


def read_series(layout: Layout, project: str) -> Series:
    """Read a series that has no problem in its own files.

    Raises:
        ProblemsError: a patch is malformed, missing, or listed twice.
    """
    series, problems = load_series(layout, project)
    if problems:
        raise ProblemsError(problems)
    return series


def require_tree(layout: Layout, pin: Pin) -> Path:
    """Return the pristine tree of a pin, or raise SourceError if it was not fetched."""
    tree = source_tree(layout, pin)
    if not tree.is_dir():
        raise SourceError(
            f"{tree}: expected the unpacked {pin.file}, found no folder; "
            "run `python build.py fetch`"
        )
    return tree


def patch(layout: Layout, pin: Pin) -> Path:
    """Write a fresh patched tree to build/patched/, and beside it a record of what changed.

    The tree appears whole or not at all. The record, `<tree>.json`, holds project, version,
    series_sha256, patches (file, sha256) and files: path → sha256, null if deleted.

    Returns:
        The tree.

    Raises:
        ProblemsError: the series is malformed or does not apply exactly; nothing was written.
        SourceError: the pristine tree is not there.
        MachineError: the disk is full.
    """
    pristine = require_tree(layout, pin)
    series = read_series(layout, pin.id)
    resolved = resolve(series.patches, pristine)
    if resolved.problems:
        raise ProblemsError(resolved.problems)
    target = layout.patched / pin.folder
    record = layout.patched / f"{pin.folder}.json"
    touched = resolved.tree.touched()
    try:
        with new_folder(target) as partial:
            shutil.copytree(pristine, partial, symlinks=True)
            for path, blob in touched.items():
                _write(partial / path, blob)
            # A tree without its record is not finished, and the record must not be another's.
            record.unlink(missing_ok=True)
        hashes = {p: b and hashlib.sha256(b.data).hexdigest() for p, b in touched.items()}
        facts = {
            "project": pin.id,
            "version": pin.version,
            "series_sha256": series.sha256,
            "patches": [{"file": p.name, "sha256": p.sha256} for p in series.patches],
            "files": hashes,
        }
        write_atomically(record, json.dumps(facts, indent=1) + "\n")
    except OSError as failure:
        raise disk_error(failure, target) from failure
    return target


def _write(file: Path, blob: Blob | None) -> None:
    if blob is None:
        file.unlink()
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(blob.data)
    file.chmod(0o755 if blob.mode == "100755" else 0o644)
