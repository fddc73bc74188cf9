"""Write a tar file as an OCI image of one layer; the same file gives the same digest."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from headrace.console import disk_error
from headrace.errors import ImageError
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.oci import (
    CONFIG,
    LAYER,
    LAYOUT_VERSION,
    MANIFEST,
    Image,
    blob_path,
    read_layout,
)

GZIP_LEVEL = 6


def write_layout(
    folder: Path,
    rootfs: Path,
    *,
    epoch: int,
    architecture: str = "amd64",
    labels: Mapping[str, str] | None = None,
) -> Image:
    """Make `folder` an image of one layer from the tar file `rootfs`; same input, same bytes.

    Device files, and whatever else lies in /dev, are left out.

    Args:
        epoch: creation time in seconds since 1970, the only time that enters the image.

    Raises:
        ImageError: `rootfs` is no tar file.
        MachineError: the disk is full.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "blobs" / "sha256").mkdir(parents=True)
        layer, diff_id = _write_layer(partial, rootfs)
        created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # The time is in the history alone: an image on top would keep its base's `created`.
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}
            | ({"Labels": dict(labels)} if labels else {}),
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created": created, "created_by": "headrace"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _write_json(partial, CONFIG, config),
            "layers": [layer],
        }
        entry = _write_json(partial, MANIFEST, manifest)
        _write_top(partial, entry)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except tarfile.TarError as damaged:
        raise ImageError(f"{rootfs}: expected a tar file, found {damaged}") from damaged
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return read_layout(folder)


def _write_layer(folder: Path, rootfs: Path) -> tuple[dict[str, Any], str]:
    target = folder / "layer.partial"
    # No name and no time in the gzip header: both would differ between two runs.
    with (
        tarfile.open(rootfs) as source,
        target.open("wb") as sink,
        gzip.GzipFile("", "wb", GZIP_LEVEL, sink, mtime=0) as packed,
    ):
        plain = _HashingWriter(packed)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as layer:
            for member in source:
                # A runtime makes /dev itself, and a rootless one could not unpack device files.
                if not member.isdev() and not member.name.removeprefix("./").startswith("dev/"):
                    layer.addfile(member, source.extractfile(member) if member.isreg() else None)
    entry = {
        "mediaType": LAYER,
        "digest": f"sha256:{hash_file(target)}",
        "size": target.stat().st_size,
    }
    target.rename(blob_path(folder, str(entry["digest"])))
    return entry, f"sha256:{plain.digest.hexdigest()}"


class _HashingWriter(io.RawIOBase):
    """Passes bytes on to `sink` and keeps their sha256."""

    def __init__(self, sink: IO[bytes] | gzip.GzipFile) -> None:
        self.sink = sink
        self.digest = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        return self.sink.write(data)


def _write_json(folder: Path, media_type: str, value: object) -> dict[str, Any]:
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blob_path(folder, digest).write_bytes(data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _write_top(folder: Path, entry: Mapping[str, Any]) -> None:
    (folder / "oci-layout").write_text(LAYOUT_VERSION)
    top = {"schemaVersion": 2, "manifests": [dict(entry)]}
    (folder / "index.json").write_text(json.dumps(top, sort_keys=True))
