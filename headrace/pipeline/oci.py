"""Read OCI image layouts.

Only what headrace needs: one image for one platform. Every blob is checked against the digest
in its name, so a layout that was read is the image that its digest names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import ImageError
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.record_file import read_record

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYOUT_VERSION = '{"imageLayoutVersion": "1.0.0"}'
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Image:
    """What a layout's manifest and config say.

    Attributes:
        digest: of the manifest, "sha256:…"; this names the image.
        config: the image config, as OCI defines it.
        layers: digests of the compressed layers, base first.
        diff_ids: digests of the same layers uncompressed.
        size: of all layers as they are stored, in bytes.
    """

    digest: str
    config_digest: str
    config: Mapping[str, Any]
    layers: tuple[str, ...]
    diff_ids: tuple[str, ...]
    size: int

    @property
    def labels(self) -> dict[str, str]:
        return dict((self.config.get("config") or {}).get("Labels") or {})


def blob_path(folder: Path, digest: str) -> Path:
    """Return where a layout keeps the blob `digest`.

    Raises:
        ImageError: `digest` is not "sha256:" and 64 hex digits.
    """
    if not DIGEST.fullmatch(digest):
        raise ImageError(f"{folder}: expected a digest sha256:…, found {digest!r}")
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def read_layout(folder: Path, *, check_layers: bool = False) -> Image:
    """Read the one image of a layout, checking manifest and config against their digests.

    With `check_layers`, every layer is hashed too.

    Raises:
        ImageError: a file is missing or damaged, or the layout holds no image or several.
    """
    try:
        return _read_layout(folder, check_layers)
    except (AttributeError, KeyError, TypeError) as broken:
        raise ImageError(f"{folder}: expected one OCI image, found {broken!r}") from broken


def _read_layout(folder: Path, check_layers: bool) -> Image:
    index = read_json(folder / "index.json")
    entries = index.get("manifests")
    if not isinstance(entries, list) or len(entries) != 1:
        found = len(entries) if isinstance(entries, list) else "none"
        raise ImageError(f"{folder / 'index.json'}: expected one image, found {found}")
    digest = str(entries[0].get("digest"))
    if entries[0].get("mediaType") != MANIFEST:
        raise ImageError(
            f"{folder / 'index.json'}: expected an image manifest, found "
            f"{entries[0].get('mediaType')}; build without attestations (--provenance=false)"
        )
    manifest = read_json(_checked(folder, digest))
    config_digest = str(manifest["config"]["digest"])
    config = read_json(_checked(folder, config_digest))
    layers = tuple(str(layer["digest"]) for layer in manifest["layers"])
    diff_ids = tuple(config["rootfs"]["diff_ids"])
    if len(layers) != len(diff_ids):
        raise ImageError(f"{folder}: expected {len(layers)} diff_ids, found {len(diff_ids)}")
    size = 0
    for layer in layers:
        path = _checked(folder, layer) if check_layers else blob_path(folder, layer)
        if not path.is_file():
            raise ImageError(f"{path}: expected a layer of {digest}, found no file")
        size += path.stat().st_size
    return Image(digest, config_digest, config, layers, diff_ids, size)


def first_difference(one: Image, other: Image) -> str:
    """Say where two images differ, or return ""."""
    if one.digest == other.digest:
        return ""
    for number, (left, right) in enumerate(zip(one.diff_ids, other.diff_ids, strict=False)):
        if left != right:
            return f"layer {number} differs: {left} and {right}"
    if one.layers != other.layers:
        return "the layers hold the same files but were compressed differently"
    return f"the configs differ: {one.config_digest} and {other.config_digest}"


def _checked(folder: Path, digest: str) -> Path:
    path = blob_path(folder, digest)
    try:
        found = hash_file(path)
    except FileNotFoundError as missing:
        raise ImageError(f"{path}: expected a blob of this image, found no file") from missing
    if f"sha256:{found}" != digest:
        raise ImageError(f"{path}: expected {digest}, found sha256:{found}; delete {folder}")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a layout, or raise ImageError."""
    try:
        return read_record(path)
    except FileNotFoundError as missing:
        raise ImageError(f"{path}: expected an OCI image layout, found no file") from missing
    except ValueError as broken:
        raise ImageError(f"{path}: expected JSON of an OCI image, found {broken}") from broken
