"""Lock and fetch the Debian packages of the image: every .deb by name, version and sha256."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from headrace.console import disk_error, download_bar, say
from headrace.errors import MachineError, MirrorMovedError, SourceError
from headrace.pipeline.apt import Apt
from headrace.pipeline.debian_lock import (
    LOCK_COMMAND,
    SETS,
    SUITE,
    Deb,
    DebianLock,
    format_lock,
    lock_path,
    parse_uris,
    read_lock,
)
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file, write_atomically
from headrace.pipeline.mirrors import ADVICE, find_sources

# What debootstrap calls minbase, and the certificates that a model download needs.
# usr-is-merged is named because its alternative, usrmerge, would bring all of Perl.
BASE_PACKAGES = ("apt", "ca-certificates", "usr-is-merged")
# libnuma1: vllm/_C*.so links it. The other libraries of the extensions are in the base or in torch.
RUNTIME_PACKAGES = ("python3", "libnuma1")
# Only for building the image: pip as a wheel, which never enters a layer.
TOOL_PACKAGES = ("python3-pip-whl",)
# At an engine's first start FlashInfer compiles kernels with nvcc, which calls g++, and Triton a C
# file that includes Python.h.
COMPILER_PACKAGES = ("g++", "libpython3-dev")
PACKAGES_OF_SETS = {
    "base": (),
    "runtime": RUNTIME_PACKAGES,
    "tools": TOOL_PACKAGES,
    "compiler": COMPILER_PACKAGES,
}
PACKAGES_OF_FLAVORS = {
    "cpu": RUNTIME_PACKAGES,
    "sm103": (*RUNTIME_PACKAGES, *COMPILER_PACKAGES),
}
BATCH = 12


def debs_folder(layout: Layout) -> Path:
    """Return the folder of the fetched packages, which is a flat apt repository."""
    return layout.build / "debian" / "debs"


def lock_debian(layout: Layout) -> DebianLock:
    """Resolve the sets against this host's mirror and write the lock file.

    Raises:
        MachineError: no mirror is known, or it does not answer.
    """
    apt = Apt(layout.build / "debian" / "apt", find_sources(SUITE))
    apt.update()
    base = [*_essential(apt.run("apt-cache", "dumpavail")), *BASE_PACKAGES]
    chosen: dict[str, Deb] = {}
    for name in SETS:
        printed = apt.run(
            "apt-get", "install", "--print-uris", "-qq", *base, *PACKAGES_OF_SETS[name]
        )
        for deb in parse_uris(printed, name):
            chosen.setdefault(deb.name, deb)
    debs = sorted(chosen.values(), key=lambda deb: (SETS.index(deb.set), deb.name))
    lock = DebianLock(SUITE, apt.epoch(), tuple(debs))
    write_atomically(lock_path(layout), format_lock(lock))
    say(f"{lock_path(layout)}: {len(debs)} packages, {sum(d.size for d in debs) / 1e6:.0f} MB")
    return lock


def fetch_debian(layout: Layout) -> tuple[Deb, ...]:
    """Bring exactly the locked packages into build/debian/debs/, and index that folder for apt.

    A package that is there and matches is left alone; any other file is deleted. A package is
    asked for by its path in the pool, where a mirror keeps it longer than in its lists.

    Raises:
        MirrorMovedError: the mirror offers other versions; each is named.
        SourceError: a package cannot be had although the mirror lists it.
        MachineError: no mirror is known or answers, or the disk is full.
    """
    lock = read_lock(lock_path(layout))
    folder = debs_folder(layout)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = _sort_out(folder, lock.debs)
        if missing:
            apt = Apt(layout.build / "debian" / "apt", find_sources(lock.suite))
            missing = _download(apt, missing, folder, layout.logs / "debian.log")
            if missing:
                _explain(apt, missing)
        _index(folder, lock.debs)
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    return lock.debs


def _essential(available: str) -> list[str]:
    names = set()
    for stanza in available.split("\n\n"):
        package = re.search(r"^Package: (\S+)$", stanza, re.MULTILINE)
        if package and re.search(r"^(Essential: yes|Priority: required)$", stanza, re.MULTILINE):
            names.add(package[1])
    return sorted(names)


def _sort_out(folder: Path, debs: Sequence[Deb]) -> list[Deb]:
    """Delete what the lock does not name or does not match; return what is missing."""
    wanted = {deb.file: deb for deb in debs}
    for path in sorted(folder.glob("*.deb")):
        deb = wanted.get(path.name)
        if deb is None:
            path.unlink()
        elif path.stat().st_size != deb.size or hash_file(path) != deb.sha256:
            say(f"{path}: expected sha256 {deb.sha256}, found another file; deleted")
            path.unlink()
    return [deb for deb in debs if not (folder / deb.file).exists()]


def _download(apt: Apt, debs: Sequence[Deb], folder: Path, log: Path) -> list[Deb]:
    """Download `debs` into `folder`, and return those that no archive has."""
    partial = folder.parent / "partial"
    partial.mkdir(exist_ok=True)
    left = []
    with download_bar() as bar:
        task = bar.add_task("Debian packages", total=sum(deb.size for deb in debs))
        for start in range(0, len(debs), BATCH):
            batch = debs[start : start + BATCH]
            apt.download([(deb.path, partial / deb.file, deb.sha256) for deb in batch], log)
            for deb in batch:
                if _accept(partial / deb.file, folder / deb.file, deb):
                    bar.update(task, advance=deb.size)
                else:
                    left.append(deb)
    return left


def _accept(partial: Path, final: Path, deb: Deb) -> bool:
    if not partial.exists():
        return False
    if hash_file(partial) != deb.sha256:
        partial.unlink()
        return False
    partial.replace(final)
    return True


def _explain(apt: Apt, missing: Sequence[Deb]) -> None:
    """Raise the error that says why `missing` cannot be had."""
    apt.update()
    moved = []
    for deb in missing:
        policy = apt.run("apt-cache", "policy", deb.name)
        offered = re.search(r"Candidate: (\S+)", policy)
        if offered is None or offered[1] != deb.version:
            moved.append(f"{deb.name} {deb.version} → {offered[1] if offered else 'nothing'}")
    if moved:
        raise MirrorMovedError(
            f"the Debian mirror no longer has what the lock names (locked → offered): "
            f"{', '.join(moved)}; run `{LOCK_COMMAND}`, commit the lock, and build again"
        )
    raise SourceError(
        f"Debian packages: {', '.join(deb.file for deb in missing)}: listed by the mirror, but not "
        "served with the locked sha256; see build/log/debian.log, then run the command again"
    )


def _index(folder: Path, debs: Sequence[Deb]) -> None:
    """Write the `Packages` file that makes `folder` a flat apt repository."""
    index = folder / "Packages"
    names = "".join(f"{deb.file} {deb.sha256}\n" for deb in debs)
    stamp = folder / ".indexed"
    if index.exists() and stamp.exists() and stamp.read_text() == names:
        return
    stanzas = []
    for deb in debs:
        control = _control(folder / deb.file)
        location = f"Filename: ./{deb.file}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        stanzas.append(control.rstrip("\n") + "\n" + location)
    write_atomically(index, "\n".join(stanzas))
    write_atomically(stamp, names)


def _control(deb: Path) -> str:
    # Not by `call`, which would print a line for each of a hundred packages.
    try:
        done = subprocess.run(
            ["dpkg-deb", "--field", deb], capture_output=True, text=True, check=True
        )
    except FileNotFoundError as missing:
        raise MachineError(f"couldn't find 'dpkg-deb' in PATH; {ADVICE}") from missing
    except subprocess.CalledProcessError as failure:
        raise SourceError(f"{deb}: expected a Debian package, found {failure.stderr}") from failure
    return done.stdout
