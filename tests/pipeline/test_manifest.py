"""Stages run when their inputs or outputs changed, and only then."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.errors import MachineError
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest, build_lock, hash_tree, write_atomically


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "build").mkdir()
    return Layout(tmp_path)


def stage(layout: Layout, inputs: dict[str, str], text: str = "made") -> bool:
    output = layout.build / "out.txt"
    return Manifest(layout).run("demo", inputs, [output], lambda: write_atomically(output, text))


def test_unchanged_inputs_do_nothing(layout: Layout) -> None:
    assert stage(layout, {"a": "1"})
    assert not stage(layout, {"a": "1"})
    assert stage(layout, {"a": "2"})
    assert stage(layout, {"a": "2", "b": "1"})


@pytest.mark.parametrize("damage", ["delete", "edit", "append"])
def test_a_changed_output_is_made_again(layout: Layout, damage: str) -> None:
    stage(layout, {"a": "1"})
    output = layout.build / "out.txt"
    if damage == "delete":
        output.unlink()
    else:
        output.write_text("same" if damage == "edit" else "made and more")
    assert stage(layout, {"a": "1"})
    assert output.read_text() == "made"


def test_a_touched_output_with_the_same_bytes_is_kept(layout: Layout) -> None:
    stage(layout, {"a": "1"})
    os.utime(layout.build / "out.txt", (1, 1))
    assert not stage(layout, {"a": "1"})


def test_a_stage_that_failed_is_not_recorded(layout: Layout) -> None:
    stage(layout, {"a": "1"})

    def fail() -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        Manifest(layout).run("demo", {"a": "2"}, [layout.build / "out.txt"], fail)
    assert stage(layout, {"a": "1"}), "the record of the earlier run must be gone"


@pytest.mark.parametrize(
    "text",
    [
        '{"stages": [',
        "[]",
        '{"stages": 3}',
        '{"stages": {"demo": 3}}',
        '{"stages": {"demo": {"outputs": {}}}}',
        '{"stages": {"demo": {"inputs": {"a": "1"}, "outputs": {"build/out.txt": "sha256"}}}}',
        pytest.param("[" * 100_000, id="nesting"),
    ],
)
def test_a_damaged_manifest_costs_a_rebuild_only(layout: Layout, text: str) -> None:
    stage(layout, {"a": "1"})
    layout.manifest.write_text(text)
    assert stage(layout, {"a": "1"})
    assert not stage(layout, {"a": "1"})


def test_a_tree_hash_sees_names_modes_links_and_bytes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    seen = {hash_tree(tree)}
    (tree / "a").write_text("1")
    seen.add(hash_tree(tree))
    (tree / "a").chmod(0o755)
    seen.add(hash_tree(tree))
    (tree / "a").rename(tree / "b")
    seen.add(hash_tree(tree))
    (tree / "l").symlink_to("b")
    seen.add(hash_tree(tree))
    (tree / "l").unlink()
    (tree / "l").symlink_to("a")
    seen.add(hash_tree(tree))
    assert len(seen) == 6


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_in_the_place_of_the_build_folder_is_one_line(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.build.write_text("")
    with pytest.raises(MachineError, match=r"build: File exists"), build_lock(layout):
        pass


def test_two_builds_of_one_checkout_take_turns(layout: Layout) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from headrace.pipeline.layout import Layout\n"
        "from headrace.pipeline.manifest import build_lock\n"
        f"with build_lock(Layout(Path({str(layout.root)!r}))):\n"
        "    print('held', flush=True); time.sleep(1.5)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        started = time.monotonic()
        with build_lock(layout):
            waited = time.monotonic() - started
        assert waited > 0.5
    finally:
        other.wait(30)


def test_a_disk_that_refuses_is_one_line_and_the_stage_runs_again(layout: Layout) -> None:
    output = layout.build / "out.txt"

    def fail() -> None:
        output.write_text("half")
        raise OSError(errno.EROFS, "Read-only file system", str(output))

    for _ in range(2):
        with pytest.raises(MachineError, match=r"out\.txt: Read-only file system; make it writ"):
            Manifest(layout).run("demo", {"a": "1"}, [output], fail)
    assert stage(layout, {"a": "1"})
