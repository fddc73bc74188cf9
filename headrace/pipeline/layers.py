"""Read every layer of an OCI layout once: hashes, and what should not be there."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, cast

from headrace.errors import ImageError
from headrace.pipeline.layer_rules import (
    DEBIAN_CERTIFICATES,
    READ_BYTES,
    Kind,
    certificates,
    judge_config,
    judge_content,
    judge_path,
    known,
)
from headrace.pipeline.oci import Image, blob_path
from headrace.pipeline.toolchain import TOOLCHAIN

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that an image must not hold, and where."""

    kind: Kind
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


@dataclass
class Scan:
    """What all layers together hold.

    Attributes:
        hashes: sha256 by path of the chosen files that a container sees, later layers applied.
        members: files, folders and links read, deleted ones included.
        paths: every file and link of any layer, also where a later one deletes it.
        waived: reason by path of what breaks a rule and may.
        trusted: certificates that Debian's package brings; bundles: those of every other file.
    """

    findings: list[Finding] = field(default_factory=list)
    hashes: dict[str, str] = field(default_factory=dict)
    members: int = 0
    paths: set[str] = field(default_factory=set)
    waived: dict[str, str] = field(default_factory=dict)
    trusted: set[bytes] = field(default_factory=set)
    bundles: dict[str, set[bytes]] = field(default_factory=dict)

    def of(self, kind: Kind) -> list[str]:
        return [str(finding) for finding in self.findings if finding.kind == kind]


class HashingReader(io.RawIOBase):
    """A stream that is hashed while it is read."""

    def __init__(self, source: IO[bytes]) -> None:
        self.source = source
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self.source.read(size)
        self.digest.update(data)
        return data


def scan_layers(
    folder: Path, image: Image, chosen: Callable[[str], bool], flavor: str = "cpu"
) -> Scan:
    """Read all layers of the layout in `folder`; hash the files whose path is `chosen`.

    Args:
        flavor: whose exceptions from the rules hold.

    Raises:
        ImageError: a layer is not a gzip or plain tar, or its bytes are not what the config says.
    """
    scanner = LayerScanner(chosen, flavor)
    scan = scanner.scan
    for kind, why in judge_config(image.config):
        scan.findings.append(Finding(kind, "image config", why))
    for number, (layer, diff_id) in enumerate(zip(image.layers, image.diff_ids, strict=True)):
        found = scanner.read(blob_path(folder, layer), f"layer {number}")
        if found != diff_id:
            raise ImageError(f"layer {number} ({layer}): expected content {diff_id}, found {found}")
    for where, bundle in scan.bundles.items():
        if strangers := bundle - scan.trusted:
            why = f"{len(strangers)} CA certificates that no Debian package brought"
            scan.findings.append(Finding("secret", where, why))
    return scan


class LayerScanner:
    """Reads layers one after the other into one `Scan`."""

    def __init__(self, chosen: Callable[[str], bool], flavor: str = "cpu") -> None:
        self.chosen = chosen
        self.flavor = flavor
        self.scan = Scan()

    def read(self, blob: Path, name: str) -> str:
        """Read one layer; return the digest of its uncompressed bytes."""
        with blob.open("rb") as packed, contextlib.ExitStack() as opened:
            magic = packed.read(2)
            packed.seek(0)
            plain: IO[bytes] = packed
            if magic == b"\x1f\x8b":
                plain = cast(IO[bytes], opened.enter_context(gzip.open(packed)))
            reader = HashingReader(plain)
            try:
                # Read once, front to back: a layer can be larger than memory.
                with tarfile.open(fileobj=reader, mode="r|", bufsize=BLOCK) as tar:
                    for member in tar:
                        self._member(tar, member, name)
                while reader.read(BLOCK):
                    pass
            except (tarfile.TarError, EOFError, gzip.BadGzipFile) as damaged:
                raise ImageError(
                    f"{blob}: expected a tar or tar+gzip layer, found {damaged}"
                ) from damaged
        return f"sha256:{reader.digest.hexdigest()}"

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo, layer: str) -> None:
        path = PurePosixPath(member.name.removeprefix("./").strip("/"))
        self.scan.members += 1
        if member.isdir():
            return
        if path.name == OPAQUE:
            self._forget_below(path.parent)
            return
        if path.name.startswith(WHITEOUT):
            path = path.with_name(path.name.removeprefix(WHITEOUT))
            self.scan.hashes.pop(str(path), None)
            self._forget_below(path)
            return
        self.scan.hashes.pop(str(path), None)
        self.scan.paths.add(str(path))
        executable = member.issym() or member.islnk() or bool(member.mode & 0o111)
        for kind, why in judge_path(str(path), executable=executable):
            self._add(kind, layer, str(path), why)
        source = tar.extractfile(member) if member.isreg() else None
        if source is not None:
            self._content(source, str(path), layer, member.size)

    def _content(self, source: IO[bytes], path: str, layer: str, size: int) -> None:
        digest = hashlib.sha256()
        if size <= READ_BYTES:
            data = source.read()
            digest.update(data)
            for kind, why in judge_content(path, data):
                self._add(kind, layer, path, why)
            self._certificates(path, f"{layer}: /{path}", data)
        elif self.chosen(path):
            while block := source.read(BLOCK):
                digest.update(block)
        if self.chosen(path):
            self.scan.hashes[path] = digest.hexdigest()

    def _certificates(self, path: str, where: str, data: bytes) -> None:
        found = certificates(path, data)
        if found and path.startswith(DEBIAN_CERTIFICATES):
            self.scan.trusted |= found
        elif found:
            self.scan.bundles[where] = found

    def _add(self, kind: Kind, layer: str, path: str, why: str) -> None:
        if reason := known(kind, path, TOOLCHAIN[self.flavor]):
            self.scan.waived[f"/{path}"] = reason
        else:
            self.scan.findings.append(Finding(kind, f"{layer}: /{path}", why))

    def _forget_below(self, folder: PurePosixPath) -> None:
        for gone in [kept for kept in self.scan.hashes if kept.startswith(f"{folder}/")]:
            del self.scan.hashes[gone]
