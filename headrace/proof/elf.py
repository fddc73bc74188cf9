"""What a shared library asks for and offers, read from its bytes: nothing is loaded or run.

An extension that needs the GPU's driver cannot be loaded where there is none. Its dynamic section
and symbol table say what loading it would look for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ENTRY = struct.Struct("<QQ")
_VERDEF, _VERDAUX = struct.Struct("<HHHHIII"), struct.Struct("<II")
_VERNEED, _VERNAUX = struct.Struct("<HHIII"), struct.Struct("<IHHII")
_DYNAMIC, _DYNSYM, _GNU_VERDEF, _GNU_VERNEED = 6, 11, 0x6FFFFFFD, 0x6FFFFFFE
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_HIDDEN = {1, 2}
_WEAK_VERSION = 2


@dataclass(frozen=True)
class Library:
    """One ELF file.

    Attributes:
        needed: names of DT_NEEDED, in order.
        rpath, runpath: folders to look in, $ORIGIN already replaced.
        defined: the symbols it exports; undefined: those it cannot be bound without.
        versions: of its own symbols; wants: of others' symbols, by the library's name.
    """

    path: Path
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    defined: frozenset[str]
    undefined: frozenset[str]
    versions: frozenset[str]
    wants: Mapping[str, frozenset[str]]


def read_library(path: Path) -> Library:
    """Read one file.

    Raises:
        ValueError: it is no 64-bit little-endian ELF file, or was cut off.
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        try:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(path, data)
        except (struct.error, IndexError) as broken:
            raise ValueError(f"{path}: a damaged ELF file: {broken}") from broken


def _read(path: Path, data: mmap.mmap) -> Library:
    header = _HEADER.unpack_from(data)
    if header[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path}: expected a 64-bit little-endian ELF file")
    offset, size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(data, offset + n * size) for n in range(count)]

    def body(section: tuple[int, ...]) -> bytes:
        return data[section[4] : section[4] + section[5]]

    # (bytes, strings) of each kind; a library has one of each, or none.
    parts = {section[1]: (body(section), body(sections[section[6]]), section[7])
             for section in sections
             if section[1] in (_DYNAMIC, _DYNSYM, _GNU_VERDEF, _GNU_VERNEED)}  # fmt: skip
    if _DYNAMIC not in parts:
        raise ValueError(f"{path}: expected a shared library, found no dynamic section")
    entries: dict[int, list[str]] = {}
    names = parts[_DYNAMIC][1]
    for tag, value in _ENTRY.iter_unpack(parts[_DYNAMIC][0]):
        if tag in (_NEEDED, _SONAME, _RPATH, _RUNPATH):
            entries.setdefault(tag, []).append(_text(names, value))
    defined, undefined = _symbols(*parts.get(_DYNSYM, (b"", b"", 0))[:2])
    return Library(
        path=path,
        soname=(entries.get(_SONAME) or [path.name])[0],
        needed=tuple(entries.get(_NEEDED, ())),
        rpath=_folders(path, entries.get(_RPATH, [])),
        runpath=_folders(path, entries.get(_RUNPATH, [])),
        defined=defined,
        undefined=undefined,
        versions=frozenset(_defined_versions(*parts.get(_GNU_VERDEF, (b"", b"", 0)))),
        wants=dict(_wanted_versions(*parts.get(_GNU_VERNEED, (b"", b"", 0)))),
    )


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode(errors="replace")


def _folders(path: Path, values: list[str]) -> tuple[str, ...]:
    origin = str(path.resolve().parent)
    return tuple(
        folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
        for value in values
        for folder in value.split(":")
        if folder
    )


def _symbols(table: bytes, strings: bytes) -> tuple[frozenset[str], frozenset[str]]:
    defined, undefined = set(), set()
    for name, info, other, section, _, _ in _SYMBOL.iter_unpack(table):
        binding = info >> 4
        if section == 0 and binding == _GLOBAL:
            undefined.add(_text(strings, name))
        elif section and binding in (_GLOBAL, _WEAK, _UNIQUE) and other & 3 not in _HIDDEN:
            defined.add(_text(strings, name))
    return frozenset(defined), frozenset(undefined - {""})


def _defined_versions(table: bytes, strings: bytes, count: int) -> Iterator[str]:
    at = 0
    for _ in range(count):
        *_, first, following = _VERDEF.unpack_from(table, at)
        yield _text(strings, _VERDAUX.unpack_from(table, at + first)[0])
        at += following


def _wanted_versions(
    table: bytes, strings: bytes, count: int
) -> Iterator[tuple[str, frozenset[str]]]:
    at = 0
    for _ in range(count):
        _, auxiliaries, file, first, following = _VERNEED.unpack_from(table, at)
        names, inner = set(), at + first
        for _ in range(auxiliaries):
            _, flags, _, name, step = _VERNAUX.unpack_from(table, inner)
            if not flags & _WEAK_VERSION:
                names.add(_text(strings, name))
            inner += step
        yield _text(strings, file), frozenset(names)
        at += following
