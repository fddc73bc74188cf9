"""What an archive may not do: leave its folder, make devices, or appear by halves."""

from __future__ import annotations

import contextlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.pipeline.archive import unpack


def tar_of(path: Path, *members: tuple[str, bytes | None, bytes]) -> Path:
    """Write a .tar.gz of (name, content, type); for links the content is the target."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content, kind in members:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                entry.linkname = (content or b"").decode()
                tar.addfile(entry)
            elif kind == tarfile.REGTYPE:
                entry.size = len(content or b"")
                tar.addfile(entry, io.BytesIO(content or b""))
            else:
                tar.addfile(entry)
    return path


FILE = tarfile.REGTYPE
GOOD = ("p-1/a.txt", b"good", FILE)


def test_an_sdist_loses_its_top_folder_and_keeps_links_and_executable_bits(tmp_path: Path) -> None:
    archive = tmp_path / "p-1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, mode in (("p-1/run.sh", 0o775), ("p-1/sub/data", 0o600)):
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size, entry.uid = mode, 3, 12345
            tar.addfile(entry, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("p-1/sub/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../run.sh"
        tar.addfile(link)
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/sub/data").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "out/sub/link").read_bytes() == b"abc"


@pytest.mark.parametrize(
    ("member", "complaint"),
    [
        (("../evil", b"x", FILE), "inside the archive's folder"),
        (("p-1/../../evil", b"x", FILE), "inside the archive's folder"),
        (("/tmp/evil", b"x", FILE), "inside the archive's folder"),
        (("p-1/dev", None, tarfile.CHRTYPE), "found p-1/dev of tar type"),
        (("p-1/block", None, tarfile.BLKTYPE), "found p-1/block of tar type"),
        (("p-1/fifo", None, tarfile.FIFOTYPE), "found p-1/fifo of tar type"),
        (("p-1/hard", b"p-1/a.txt", tarfile.LNKTYPE), "found p-1/hard of tar type"),
        (("p-1/abs", b"/etc/passwd", tarfile.SYMTYPE), "links inside the archive"),
        (("p-1/up", b"../../etc", tarfile.SYMTYPE), "links inside the archive"),
        (("p-1/a.txt", b"again", FILE), "found p-1/a.txt again"),
        (("q-2/b.txt", b"x", FILE), "expected one top folder"),
    ],
)
def test_an_unsafe_member_is_named_and_nothing_is_left(
    tmp_path: Path, member: tuple[str, bytes | None, bytes], complaint: str
) -> None:
    archive = tar_of(tmp_path / "p-1.tar.gz", GOOD, member)
    with pytest.raises(SourceError, match=complaint):
        unpack(archive, tmp_path / "in" / "out")
    assert list((tmp_path / "in").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "p-1.tar.gz"]


def test_a_file_behind_a_link_of_the_same_archive_is_refused(tmp_path: Path) -> None:
    archive = tar_of(
        tmp_path / "p-1.tar.gz",
        ("p-1/real/x", b"x", FILE),
        ("p-1/link", b"real", tarfile.SYMTYPE),
        ("p-1/link/y", b"y", FILE),
    )
    with pytest.raises(SourceError, match="found a link"):
        unpack(archive, tmp_path / "out")


def test_a_cut_archive_is_refused_and_an_older_tree_stays(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "p-1.tar.gz", GOOD, ("p-1/big", bytes(range(256)) * 4096, FILE))
    unpack(archive, tmp_path / "out")
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(SourceError, match="expected a whole archive"):
        unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/a.txt").read_bytes() == b"good"


@pytest.mark.parametrize("name", ["../evil", "/abs", "a/../../b", "..\\evil"])
def test_a_wheel_with_an_unsafe_name_is_refused(tmp_path: Path, name: str) -> None:
    wheel = tmp_path / "p-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr(name, "x")
    with pytest.raises(SourceError, match="inside the archive's folder"):
        unpack(wheel, tmp_path / "out")


def test_a_wheel_with_a_link_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "p-1-py3-none-any.whl"
    entry = zipfile.ZipInfo("p/link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr(entry, "/etc/passwd")
    with pytest.raises(SourceError, match="expected plain files"):
        unpack(wheel, tmp_path / "out")


@given(names=st.lists(st.text(st.sampled_from("ab./\\"), min_size=1, max_size=8), max_size=6))
def test_no_name_reaches_outside(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    root = tmp_path_factory.mktemp("names")
    archive = tar_of(root / "p-1.tar.gz", GOOD, *((f"p-1/{n}", b"x", FILE) for n in names))
    with contextlib.suppress(SourceError):
        unpack(archive, root / "box" / "out")
    assert {path.name for path in root.iterdir()} <= {"box", "p-1.tar.gz"}
    assert {path.name for path in (root / "box").iterdir()} <= {"out"}
