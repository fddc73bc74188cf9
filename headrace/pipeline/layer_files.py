"""Take single files out of an image's layers, one at a time."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from headrace.errors import ImageError
from headrace.pipeline.oci import Image, blob_path

BLOCK = 1 << 20


def each_file(
    folder: Path, image: Image, wanted: Mapping[str, str], scratch: Path
) -> Iterator[tuple[str, Path]]:
    """Yield path and copy of each `wanted` file; the copy is gone when the next one comes.

    Args:
        folder: the layout of the image.
        wanted: sha256 by path in the image, as a scan found them: those that a container sees.

    Raises:
        ImageError: a file is in no layer with those bytes.
    """
    left = dict(wanted)
    for layer in image.layers:
        if not left:
            return
        # Compression is told from the first bytes; read once, front to back.
        with tarfile.open(blob_path(folder, layer), mode="r|*", bufsize=BLOCK) as tar:
            for member in tar:
                path = member.name.removeprefix("./").strip("/")
                source = tar.extractfile(member) if path in left and member.isreg() else None
                if source is None:
                    continue
                copy = scratch / Path(path).name
                if _copy(source, copy) == left[path]:
                    del left[path]
                    yield path, copy
                copy.unlink(missing_ok=True)
    if left:
        raise ImageError(f"/{next(iter(left))}: expected it in a layer, found none with its bytes")


def _copy(source: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with source, target.open("wb") as stream:
        while block := source.read(BLOCK):
            digest.update(block)
            stream.write(block)
    return digest.hexdigest()
