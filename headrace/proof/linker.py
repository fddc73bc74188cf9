"""Which files the dynamic loader would take for a library, and what those leave unresolved.

The rules are ld.so's: a name that is loaded already, DT_RPATH of the asker and of whoever loaded
it (unless the asker has a DT_RUNPATH), LD_LIBRARY_PATH, DT_RUNPATH of the asker, the cache of
ldconfig, the default folders.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.proof.elf import Library, read_library

DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
CACHED = re.compile(r"^\s+(\S+) \(libc6,x86-64[^)]*\) => (/\S+)$", re.MULTILINE)
# The driver's libraries come with the machine: what may be missing, and what only they define.
DRIVER: Mapping[str, re.Pattern[str]] = {
    "libcuda.so.1": re.compile(r"cu[A-Z]\w*"),
    "libnvidia-ml.so.1": re.compile(r"nvml[A-Z]\w*"),
}

read = functools.cache(read_library)


@dataclass
class Scope:
    """A library with all that loading it brings.

    Attributes:
        absent: libraries of the driver that are asked for and not there.
        problems: what cannot be found, one line each.
    """

    libraries: list[Library] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def defines(self, symbol: str) -> bool:
        return any(symbol in library.defined for library in self.libraries)

    def of_driver(self, symbol: str) -> bool:
        return any(DRIVER[name].fullmatch(symbol) for name in self.absent)


class Loader:
    """Follows what libraries ask for, in a process that has `loaded` files mapped already."""

    def __init__(self, loaded: Iterable[Path] = ()) -> None:
        self.loaded = {read(path).soname: path for path in loaded}
        self.path = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
        self.cache = ldconfig_cache()

    def scope(self, path: Path) -> Scope:
        """Return what loading `path` would bind: itself, then all it needs, breadth first."""
        scope = Scope()
        first = read(path)
        queue: list[tuple[Library, tuple[Library, ...]]] = [(first, ())]
        seen = {path.resolve()}
        named: dict[str, Library] = {}
        while queue:
            library, parents = queue.pop(0)
            scope.libraries.append(library)
            for name in library.needed:
                if name in named:
                    continue
                found = self.find(name, library, parents)
                if found is None:
                    if name in DRIVER:
                        scope.absent.add(name)
                    else:
                        scope.problems.append(f"{library.path}: needs {name}, which is nowhere")
                    continue
                named[name] = read(found)
                if found.resolve() not in seen:
                    seen.add(found.resolve())
                    queue.append((named[name], (library, *parents)))
        for library in scope.libraries:
            scope.problems += missing_versions(library, named)
        return scope

    def find(self, name: str, asker: Library, parents: tuple[Library, ...]) -> Path | None:
        """Return the file that `asker`, loaded by `parents`, gets for `name`; None if none."""
        if "/" in name:
            return Path(name) if Path(name).is_file() else None
        if name in self.loaded:
            return self.loaded[name]
        for folder in self.folders(asker, parents):
            if (path := Path(folder) / name).is_file():
                return path
        if name in self.cache:
            return self.cache[name]
        paths = (Path(folder) / name for folder in DEFAULT_FOLDERS)
        return next((path for path in paths if path.is_file()), None)

    def folders(self, asker: Library, parents: tuple[Library, ...]) -> Iterator[str]:
        if not asker.runpath:
            for library in (asker, *parents):
                if not library.runpath:
                    yield from library.rpath
        yield from self.path
        yield from asker.runpath


def missing_versions(library: Library, named: Mapping[str, Library]) -> Iterator[str]:
    """Name each version of symbols that `library` wants and the file it gets does not define."""
    for name, wanted in library.wants.items():
        if name not in named:
            continue
        for version in sorted(wanted - named[name].versions):
            yield f"{library.path}: needs version {version} of {name}, not in {named[name].path}"


def ldconfig_cache() -> dict[str, Path]:
    """Return what ldconfig knows, name → file; nothing where there is no ldconfig."""
    try:
        said = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    cache: dict[str, Path] = {}
    for name, path in CACHED.findall(said):
        cache.setdefault(name, Path(path))
    return cache
