"""Turn an OCI archive (a tar of a layout) into a layout, and a layout into an archive."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import IO

from headrace.console import disk_error
from headrace.errors import ImageError
from headrace.pipeline.oci import LAYOUT_VERSION, Image, read_json, read_layout

BLOCK = 1 << 20
# The only names an image archive may hold: anything else is not unpacked but refused.
ARCHIVE_NAME = re.compile(
    r"(?:\./)?(oci-layout|index\.json|manifest\.json|blobs/sha256/[0-9a-f]{64})"
)


def unpack_archive(stream: IO[bytes], folder: Path) -> Image:
    """Turn an OCI archive (a tar of a layout) into the layout `folder`, whole or not at all.

    Raises:
        ImageError: the archive is damaged, or holds anything but blobs and the two index files.
        MachineError: the disk is full.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "blobs" / "sha256").mkdir(parents=True)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                if not member.isdir():
                    _unpack_member(tar, member, partial)
        image = read_layout(partial, check_layers=True)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except tarfile.TarError as damaged:
        raise ImageError(f"{folder}: expected an OCI archive, found {damaged}") from damaged
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return image


def pack_archive(folder: Path, name: str, stream: IO[bytes]) -> None:
    """Write the layout `folder` as an archive that `docker load` gives the name `name`.

    The name goes into the archive's index alone, so the image keeps its digest.
    """
    index = read_json(folder / "index.json")
    # The store keeps a name as it is; docker looks a short one up under its own registry.
    full = name if "/" in name else f"docker.io/library/{name}"
    for entry in index["manifests"]:
        entry["annotations"] = {
            "io.containerd.image.name": full,
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        }
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for path, data in (
            ("oci-layout", LAYOUT_VERSION.encode()),
            ("index.json", json.dumps(index).encode()),
        ):
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for blob in sorted((folder / "blobs" / "sha256").iterdir()):
            tar.add(blob, f"blobs/sha256/{blob.name}")


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    match = ARCHIVE_NAME.fullmatch(member.name)
    source = tar.extractfile(member) if member.isreg() else None
    if match is None or source is None:
        raise ImageError(
            f"{folder}: expected blobs, index.json and oci-layout in an OCI archive, "
            f"found {member.name!r}"
        )
    if match[1] == "manifest.json":
        # Docker's older index of the same image; the layout does without it.
        return
    with source, (folder / match[1]).open("wb") as sink:
        shutil.copyfileobj(source, sink, BLOCK)
