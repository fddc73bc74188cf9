"""Writing, reading, packing and unpacking OCI layouts."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ImageError
from headrace.pipeline.oci import Image, blob_path, first_difference, read_layout
from headrace.pipeline.oci_archive import pack_archive, unpack_archive
from headrace.pipeline.oci_write import write_layout


def write_tar(path: Path, *members: tuple[str, bytes, str]) -> Path:
    """Write a tar of (name, type, text); a text is the data of a file or the target of a link."""
    with tarfile.open(path, "w") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(text)
            else:
                member.linkname = text
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return write_tar(
        tmp_path / "root.tar",
        ("./dev", tarfile.DIRTYPE, ""),
        ("./dev/null", tarfile.CHRTYPE, ""),
        ("./dev/fd", tarfile.SYMTYPE, "/proc/self/fd"),
        ("./etc/name", tarfile.REGTYPE, "value"),
        ("./bin", tarfile.SYMTYPE, "usr/bin"),
    )


@pytest.fixture
def layout(tmp_path: Path, rootfs: Path) -> Path:
    write_layout(tmp_path / "image", rootfs, epoch=86400, labels={"a": "b"})
    return tmp_path / "image"


def layer_of(folder: Path, image: Image) -> bytes:
    return gzip.decompress(blob_path(folder, image.layers[0]).read_bytes())


def test_a_written_image_reads_back(layout: Path) -> None:
    image = read_layout(layout, check_layers=True)
    assert image.labels == {"a": "b"}
    assert image.config["history"][0]["created"] == "1970-01-02T00:00:00Z"
    assert "created" not in image.config
    data = layer_of(layout, image)
    assert image.diff_ids == (f"sha256:{hashlib.sha256(data).hexdigest()}",)
    assert image.size == blob_path(layout, image.layers[0]).stat().st_size
    manifest = blob_path(layout, image.digest).read_bytes()
    assert image.digest == f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def test_what_lies_in_dev_is_left_out_and_the_rest_kept(layout: Path) -> None:
    data = layer_of(layout, read_layout(layout))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["./dev", "./etc/name", "./bin"]
        assert tar.getmember("./bin").linkname == "usr/bin"
        name = tar.extractfile("./etc/name")
        assert name is not None
        assert name.read() == b"value"


def test_the_same_input_gives_the_same_digest_and_another_does_not(
    tmp_path: Path, rootfs: Path, layout: Path
) -> None:
    first = read_layout(layout)
    again = write_layout(tmp_path / "again", rootfs, epoch=86400, labels={"a": "b"})
    assert again == first
    assert first_difference(first, again) == ""
    later = write_layout(tmp_path / "later", rootfs, epoch=86401, labels={"a": "b"})
    assert "the configs differ" in first_difference(first, later)
    changed = write_tar(tmp_path / "other.tar", ("./etc/name", tarfile.REGTYPE, "other"))
    other = write_layout(tmp_path / "other", changed, epoch=86400, labels={"a": "b"})
    assert "layer 0 differs" in first_difference(first, other)


def test_a_root_that_is_no_tar_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "root.tar").write_bytes(b"this is no tar file" * 100)
    with pytest.raises(ImageError, match=r"root\.tar: expected a tar file"):
        write_layout(tmp_path / "image", tmp_path / "root.tar", epoch=0)
    assert [path.name for path in tmp_path.iterdir()] == ["root.tar"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def damage_manifest(folder: Path) -> None:
    flip(blob_path(folder, read_layout(folder).digest))


def damage_config(folder: Path) -> None:
    flip(blob_path(folder, read_layout(folder).config_digest))


def damage_layer(folder: Path) -> None:
    flip(blob_path(folder, read_layout(folder).layers[0]))


def drop_layer(folder: Path) -> None:
    blob_path(folder, read_layout(folder).layers[0]).unlink()


def edit_index(folder: Path, change: Callable[[dict[str, list[dict[str, str]]]], None]) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


def second_image(folder: Path) -> None:
    edit_index(folder, lambda index: index["manifests"].append(index["manifests"][0]))


def nested_index(folder: Path) -> None:
    kind = "application/vnd.oci.image.index.v1+json"
    edit_index(folder, lambda index: index["manifests"][0].update(mediaType=kind))


def climbing_digest(folder: Path) -> None:
    edit_index(folder, lambda index: index["manifests"][0].update(digest="sha256:../../index.json"))


def no_index(folder: Path) -> None:
    (folder / "index.json").unlink()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (damage_manifest, "expected sha256:"),
        (damage_config, "expected sha256:"),
        (damage_layer, "expected sha256:"),
        (drop_layer, "found no file"),
        (second_image, "expected one image, found 2"),
        (nested_index, "--provenance=false"),
        (climbing_digest, "expected a digest"),
        (no_index, "expected an OCI image layout"),
    ],
)
def test_a_damaged_layout_is_refused(
    layout: Path, damage: Callable[[Path], None], expected: str
) -> None:
    damage(layout)
    with pytest.raises(ImageError, match=expected):
        read_layout(layout, check_layers=True)


def test_packing_and_unpacking_keeps_the_digest(tmp_path: Path, layout: Path) -> None:
    archive = io.BytesIO()
    pack_archive(layout, "name:tag", archive)
    archive.seek(0)
    assert unpack_archive(archive, tmp_path / "copy") == read_layout(layout)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../escape", tarfile.REGTYPE),
        ("/absolute", tarfile.REGTYPE),
        ("blobs/sha256/../../escape", tarfile.REGTYPE),
        ("blobs/sha256/" + "0" * 64, tarfile.SYMTYPE),
        ("index.json", tarfile.LNKTYPE),
        ("other", tarfile.REGTYPE),
        ("blobs/sha256/" + "0" * 64, tarfile.CHRTYPE),
    ],
)
def test_an_archive_with_anything_else_is_refused_whole(
    tmp_path: Path, layout: Path, name: str, kind: bytes
) -> None:
    good = io.BytesIO()
    pack_archive(layout, "name:tag", good)
    bad = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(good.getvalue())) as source,
        tarfile.open(fileobj=bad, mode="w") as target,
    ):
        for member in source:
            target.addfile(member, source.extractfile(member))
        extra = tarfile.TarInfo(name)
        extra.type, extra.linkname = kind, "index.json"
        target.addfile(extra, io.BytesIO())
    bad.seek(0)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ImageError, match=r"expected blobs, index\.json and oci-layout"):
        unpack_archive(bad, tmp_path / "copy")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_archive_cut_short_is_refused_and_the_old_layout_kept(
    tmp_path: Path, layout: Path
) -> None:
    whole = io.BytesIO()
    pack_archive(layout, "name:tag", whole)
    before = read_layout(layout, check_layers=True)
    with pytest.raises(ImageError):
        unpack_archive(io.BytesIO(whole.getvalue()[: len(whole.getvalue()) // 3]), layout)
    assert read_layout(layout, check_layers=True) == before
