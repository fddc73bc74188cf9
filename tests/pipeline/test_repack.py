"""A wheel that is packed again installs with the same names, and its RECORD says what is in it."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.errors import WheelError
from headrace.pipeline.archive import unpack
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.records import read_wheel
from headrace.pipeline.repack import repack

INFO = "demo-1.0.post1.dist-info"
NAME = "demo-1.0.post1-py3-none-any.whl"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    files = {
        "demo/__init__.py": b"__version__ = '1.0.post1'\n",
        "demo/data/kernel, old.cu": b"// a name with a comma\n",
        "demo/data/run.sh": b"#!/bin/sh\n",
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0.post1\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{INFO}/RECORD": b"demo/__init__.py,sha256=stale,1\n",
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "demo/data/run.sh").chmod(0o755)
    return folder


def test_pip_installs_it_with_every_file_and_mode(tree: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "out" / NAME
    repack(tree, wheel, {"demo/data/added.json": b"{}\n"})
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--no-compile", "--target", site, wheel],
        check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )  # fmt: skip
    assert (site / "demo/data/added.json").read_bytes() == b"{}\n"
    assert (site / "demo/data/kernel, old.cu").read_bytes() == b"// a name with a comma\n"
    assert (site / "demo/data/run.sh").stat().st_mode & 0o111
    assert not (site / "demo/__init__.py").stat().st_mode & 0o111


def test_the_record_names_every_file_with_its_hash(tree: Path, tmp_path: Path) -> None:
    wheel = tmp_path / NAME
    repack(tree, wheel, {"demo/data/added.json": b"{}\n"})
    with zipfile.ZipFile(wheel) as zipped:
        rows = list(csv.reader(io.StringIO(zipped.read(f"{INFO}/RECORD").decode())))
        assert sorted(row[0] for row in rows) == sorted(zipped.namelist())
        assert zipped.namelist()[-1] == f"{INFO}/RECORD"
    files = read_wheel(wheel).files
    assert files["demo/__init__.py"] == hash_file(tree / "demo/__init__.py")


def test_the_bytes_depend_on_the_files_alone(tree: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a" / NAME, tmp_path / "b" / NAME
    repack(tree, first)
    for path in tree.rglob("*"):
        os.utime(path, (1, 1))
    repack(tree, second)
    assert hash_file(first) == hash_file(second)
    unpack(second, tmp_path / "again")
    repack(tmp_path / "again", second)
    assert hash_file(first) == hash_file(second)


def test_a_file_that_is_there_already_is_not_replaced(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=r"expected no demo/__init__\.py yet, found one"):
        repack(tree, tmp_path / NAME, {"demo/__init__.py": b""})
    assert not list(tmp_path.glob("*.whl"))


def test_what_is_no_unpacked_wheel_is_refused(tree: Path, tmp_path: Path) -> None:
    (tree / "other-1.0.dist-info").mkdir()
    with pytest.raises(WheelError, match=r"found demo-1.0.post1.dist-info, other-1.0.dist-info"):
        repack(tree, tmp_path / NAME)
    with pytest.raises(WheelError, match="found none"):
        repack(tmp_path / "nothing", tmp_path / NAME)
