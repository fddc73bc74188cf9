"""Unpack an archive that nobody vouches for beyond its hash.

Refused: absolute names, names that climb out, links whose target lies outside, device files,
FIFOs, and two entries of one name that differ in kind.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import BinaryIO

from headrace.console import disk_error
from headrace.errors import SourceError


def unpack(archive: Path, destination: Path) -> None:
    """Unpack a .tar.gz sdist (without its top folder) or a wheel into a new `destination`.

    The tree appears whole or not at all. File times are not kept; executable bits are.

    Raises:
        SourceError: an entry is unsafe, or the archive is damaged.
        MachineError: the disk is full.
    """
    partial = destination.with_name(f".{destination.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        if archive.name.endswith((".whl", ".zip")):
            _unzip(archive, partial)
            tree = partial
        else:
            _untar(archive, partial)
            tree = _only_folder(archive, partial)
        shutil.rmtree(destination, ignore_errors=True)
        tree.rename(destination)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as damaged:
        raise SourceError(f"{archive}: expected a whole archive, found {damaged}") from damaged
    except OSError as failure:
        raise disk_error(failure, destination) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            _check_name(archive, member.name)
            target = folder / member.name
            _check_parents(archive, member.name, folder)
            if member.isdir():
                _make_folder(archive, target, member.name)
            elif member.isfile():
                source = tar.extractfile(member)
                if source is None:
                    raise SourceError(f"{archive}: expected bytes for {member.name}, found none")
                with source, _create(archive, target, member.name) as sink:
                    shutil.copyfileobj(source, sink)
                target.chmod(0o755 if member.mode & 0o111 else 0o644)
            elif member.issym():
                _link(archive, folder, member.name, member.linkname)
            else:
                raise SourceError(
                    f"{archive}: expected files, folders and symbolic links, "
                    f"found {member.name} of tar type {member.type!r}"
                )


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as zipped:
        for entry in zipped.infolist():
            _check_name(archive, entry.filename)
            _check_parents(archive, entry.filename, folder)
            target = folder / entry.filename
            mode = entry.external_attr >> 16
            if entry.is_dir():
                _make_folder(archive, target, entry.filename)
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise SourceError(
                    f"{archive}: expected plain files, found {entry.filename} of mode {mode:o}"
                )
            with zipped.open(entry) as source, _create(archive, target, entry.filename) as sink:
                shutil.copyfileobj(source, sink)
            target.chmod(0o755 if mode & 0o111 else 0o644)


def _make_folder(archive: Path, target: Path, name: str) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as twice:
        raise SourceError(f"{archive}: expected each name once, found {name} again") from twice


def _create(archive: Path, target: Path, name: str) -> BinaryIO:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as twice:
        raise SourceError(f"{archive}: expected each name once, found {name} again") from twice


def _check_name(archive: Path, name: str) -> None:
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or "\0" in name or not name:
        raise SourceError(f"{archive}: expected names inside the archive's folder, found {name!r}")


def _check_parents(archive: Path, name: str, folder: Path) -> None:
    # A link that an earlier entry made must not carry a later one elsewhere.
    for parent in Path(name).parents:
        if (folder / parent).is_symlink():
            raise SourceError(f"{archive}: expected a folder {parent}, found a link, at {name!r}")


def _link(archive: Path, folder: Path, name: str, target: str) -> None:
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    top = name.split("/", 1)[0]
    if target.startswith("/") or not (reached == top or reached.startswith(top + "/")):
        raise SourceError(f"{archive}: expected links inside the archive, found {name} -> {target}")
    path = folder / name
    _make_folder(archive, path.parent, name)
    if os.path.lexists(path):
        raise SourceError(f"{archive}: expected each name once, found {name} again")
    path.symlink_to(target)


def _only_folder(archive: Path, folder: Path) -> Path:
    entries = list(folder.iterdir())
    if len(entries) != 1 or entries[0].is_symlink() or not entries[0].is_dir():
        names = ", ".join(sorted(entry.name for entry in entries)[:5]) or "nothing"
        raise SourceError(f"{archive}: expected one top folder, found {names}")
    return entries[0]
