"""What is laid out for the Dockerfile: exactly the locked wheels, by hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, ImageError
from headrace.pipeline.contexts import stage_contexts
from headrace.pipeline.layout import Layout
from headrace.pipeline.requirements import (
    format_requirements,
    match_wheels,
    read_requirements,
)

SHA = "0" * 64


def put(folder: Path, name: str, data: bytes = b"wheel") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def test_a_lock_with_continued_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cpu.txt"
    path.write_text(
        f"# a comment\n\nSome.Name==1.0+cpu \\\n    --hash=sha256:{SHA} \\\n"
        f"    --hash=sha256:{'1' * 64}\nother==2 --hash=sha256:{SHA}\n"
    )
    one, two = read_requirements(path)
    assert (one.name, str(one.version), one.hashes) == (
        "some-name",
        "1.0+cpu",
        frozenset({SHA, "1" * 64}),
    )
    assert two.name == "other"


@pytest.mark.parametrize(
    "line",
    [
        "one==1.0",
        f"one>=1.0 --hash=sha256:{SHA}",
        f"one==1.0 --hash=md5:{SHA}",
        f"one @ http://m.example/one.whl --hash=sha256:{SHA}",
        "--index-url http://m.example",
    ],
)
def test_a_line_that_pins_no_hash_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "cpu.txt").write_text(line + "\n")
    with pytest.raises(ConfigurationError, match="expected 'name==version --hash"):
        read_requirements(tmp_path / "cpu.txt")


def test_a_version_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_text(
        f"one==1.0 --hash=sha256:{SHA}\ntwo==x1 --hash=sha256:{SHA}\n"
    )
    with pytest.raises(ConfigurationError, match=r"cpu\.txt: two: expected a version, found 'x1'"):
        read_requirements(tmp_path / "cpu.txt")


def test_an_empty_lock_is_no_image_without_anything(tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_text("# nothing\n")
    with pytest.raises(ConfigurationError, match=r"cpu\.txt: expected .*found no entry; run"):
        read_requirements(tmp_path / "cpu.txt")


def test_a_missing_lock_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"python build\.py lock python"):
        read_requirements(tmp_path / "cpu.txt")


def test_a_wheel_with_another_hash_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_text(f"one==1.0 --hash=sha256:{SHA}\n")
    found = put(tmp_path / "house", "one-1.0-py3-none-any.whl")
    with pytest.raises(ImageError, match=f"one 1.0 with a locked sha256, found .*{found}"):
        match_wheels(read_requirements(tmp_path / "cpu.txt"), tmp_path / "house", "cpu")


def test_a_missing_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_text(f"one==1.0 --hash=sha256:{SHA}\n")
    put(tmp_path / "house", "one-1.1-py3-none-any.whl")
    with pytest.raises(ImageError, match=r"one 1\.0 .*found no file; run `python build\.py fetch"):
        match_wheels(read_requirements(tmp_path / "cpu.txt"), tmp_path / "house", "cpu")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    house = made.wheelhouse("cpu")
    torch = put(house, "torch-1.0+cpu-py3-none-any.whl", b"torch")
    engine = put(house, "engine-2.0-py3-none-any.whl", b"engine")
    put(house, "stranger-1.0-py3-none-any.whl", b"not locked")
    made.locks.mkdir()
    (made.locks / "cpu.txt").write_text(
        f"engine==2.0 --hash=sha256:{engine}\ntorch==1.0+cpu --hash=sha256:{torch}\n"
    )
    put(made.build / "debian/debs", "one_1_all.deb")
    put(made.build / "debian/debs", "Packages")
    put(made.wheels("cpu"), "lmcache-0.5.5+headrace.2-cp311-cp311-linux_x86_64.whl")
    put(made.wheels("cpu"), "headrace-0.1.0-py3-none-any.whl")
    return made


def test_each_layer_gets_its_wheels_and_nothing_else(layout: Layout) -> None:
    folder = stage_contexts(layout, "cpu")
    held = {
        path.parent.name: sorted(wheel.name for wheel in path.parent.glob("*.whl"))
        for path in folder.glob("*/requirements.txt")
    }
    assert held == {
        "torch": ["torch-1.0+cpu-py3-none-any.whl"],
        "engine": ["engine-2.0-py3-none-any.whl"],
        "headrace": [
            "headrace-0.1.0-py3-none-any.whl",
            "lmcache-0.5.5+headrace.2-cp311-cp311-linux_x86_64.whl",
        ],
    }
    sha = hashlib.sha256(b"wheel").hexdigest()
    assert (folder / "headrace/requirements.txt").read_text() == (
        f"headrace==0.1.0 --hash=sha256:{sha}\nlmcache==0.5.5+headrace.2 --hash=sha256:{sha}\n"
    )
    assert (folder / "debs/one_1_all.deb").exists()


def test_staging_again_replaces_what_was_there(layout: Layout) -> None:
    folder = stage_contexts(layout, "cpu")
    put(folder / "torch", "left-1.0-py3-none-any.whl")
    assert stage_contexts(layout, "cpu") == folder
    assert not list(folder.rglob("left-*"))


def test_without_our_own_wheels_the_next_command_is_named(layout: Layout) -> None:
    next(layout.wheels("cpu").glob("lmcache-*")).unlink()
    with pytest.raises(ImageError, match=r"found headrace; run `python build\.py wheels"):
        stage_contexts(layout, "cpu")
    assert not (layout.build / "context/cpu").exists()


def test_two_versions_of_our_own_wheel_are_refused(layout: Layout) -> None:
    put(layout.wheels("cpu"), "lmcache-0.5.5+headrace.1-cp311-cp311-linux_x86_64.whl")
    with pytest.raises(ImageError, match="found headrace, lmcache, lmcache"):
        stage_contexts(layout, "cpu")


def test_requirements_are_sorted_by_name() -> None:
    wheels = {Path("b-1-py3-none-any.whl"): SHA, Path("a-1-py3-none-any.whl"): SHA}
    text = format_requirements(wheels)
    assert [line.split("==")[0] for line in text.splitlines()] == ["a", "b"]


def test_a_lock_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "cpu.txt").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigurationError, match=r"cpu\.txt:1: expected UTF-8, found byte 0xe9"):
        read_requirements(tmp_path / "cpu.txt")
