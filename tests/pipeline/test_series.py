"""`patch` refuses a whole series before it writes a byte, and then writes a whole tree."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import MachineError, SourceError
from headrace.pipeline.newfolder import new_folder
from headrace.pipeline.problem import ProblemsError
from headrace.pipeline.resolve import resolve
from headrace.pipeline.series import load_series, patch, read_series
from tests.pipeline.toy import PRISTINE, Checkout, numbers, text

BLOB = bytes(range(256)) * 4


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tree_of(folder: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in folder.rglob("*")
        if path.is_file()
    }


def all_kinds(checkout: Checkout) -> None:
    checkout.series(
        ("Change a line", {"toy/numbers.py": numbers(line_20="twenty")}),
        ("Change the same line", {"toy/numbers.py": numbers(line_20="TWENTY  ", line_1="\tone")}),
        ("Add a file", {"toy/deep/er/new file é.py": text(b"no newline at the end", "100755")}),
        ("Change line ends", {"toy/dos.txt": text(b"one\r\ntwo!\r\nthree\n")}),
        ("Delete a file", {"README": None}),
        ("Change a mode", {"toy/run.sh": text(PRISTINE["toy/run.sh"])}),
        ("Change bytes", {"toy/blob.bin": text(BLOB[:500] + b"\0changed" + BLOB[500:])}),
        (
            "Move a file",
            {"toy/numbers.py": None, "toy/moved.py": numbers(line_20="twenty", line_40="last")},
        ),
        ("Empty a file", {"toy/kept.log": text(b"")}),
        ("Delete an empty file", {"toy/kept.log": None}),
    )


def test_every_kind_of_change_is_applied_and_recorded(checkout: Checkout) -> None:
    all_kinds(checkout)
    before = tree_of(checkout.tree)
    tree = patch(checkout.layout, checkout.pin)
    expected = dict(before)
    for gone in ("README", "toy/numbers.py", "toy/kept.log"):
        del expected[gone]
    expected["toy/run.sh"] = (PRISTINE["toy/run.sh"], False)
    expected["toy/dos.txt"] = (b"one\r\ntwo!\r\nthree\n", False)
    expected["toy/blob.bin"] = (BLOB[:500] + b"\0changed" + BLOB[500:], False)
    expected["toy/deep/er/new file é.py"] = (b"no newline at the end", True)
    expected["toy/moved.py"] = (numbers(line_20="twenty", line_40="last").data, False)
    assert tree == checkout.layout.patched / "toy-1.0"
    assert tree_of(tree) == expected
    assert tree_of(checkout.tree) == before
    record = json.loads((checkout.layout.patched / "toy-1.0.json").read_text())
    assert record["project"] == "toy"
    assert record["version"] == "1.0"
    assert record["files"] == {
        "README": None,
        "toy/blob.bin": sha256(expected["toy/blob.bin"][0]),
        "toy/deep/er/new file é.py": sha256(b"no newline at the end"),
        "toy/dos.txt": sha256(b"one\r\ntwo!\r\nthree\n"),
        "toy/kept.log": None,
        "toy/moved.py": sha256(expected["toy/moved.py"][0]),
        "toy/numbers.py": None,
        "toy/run.sh": sha256(PRISTINE["toy/run.sh"]),
    }
    names = (checkout.folder / "series").read_text().splitlines()[1:]
    assert record["patches"] == [
        {"file": name, "sha256": sha256((checkout.folder / name).read_bytes())} for name in names
    ]
    assert record["series_sha256"] == read_series(checkout.layout, "toy").sha256


def test_the_hash_of_a_series_follows_names_order_and_bytes(checkout: Checkout) -> None:
    seen = set()
    one, two = ("Add one", {"one": text(b"1\n")}), ("Add two", {"two": text(b"2\n")})
    for steps in ((), (one,), (one, two), (two, one), (one, ("Add two!", two[1]))):
        checkout.series(*steps)
        seen.add(read_series(checkout.layout, "toy").sha256)
    assert len(seen) == 5


def test_a_series_that_fails_late_writes_nothing(checkout: Checkout) -> None:
    checkout.series(
        ("First", {"toy/numbers.py": numbers(line_5="five")}),
        ("Second", {"toy/numbers.py": numbers(line_5="five", line_30="thirty")}),
    )
    patch(checkout.layout, checkout.pin)
    before = tree_of(checkout.layout.patched)
    checkout.replace("second.patch", " line 28", " line 82")
    with pytest.raises(ProblemsError) as refused:
        patch(checkout.layout, checkout.pin)
    (problem,) = refused.value.problems
    assert str(problem) == (
        f"patches/toy/second.patch:{checkout.line_of('second.patch', ' line 82')}: "
        "expected 'line 82' at line 28, found 'line 28' (applies only with fuzz 2); "
        "run `python build.py edit toy`, then `python build.py refresh toy`"
    )
    assert tree_of(checkout.layout.patched) == before
    assert sorted(path.name for path in checkout.layout.patched.iterdir()) == [
        "toy-1.0",
        "toy-1.0.json",
    ]


def test_one_fault_is_told_once(checkout: Checkout) -> None:
    checkout.series(
        ("First", {"toy/numbers.py": numbers(line_5="five"), "new": text(b"n\n")}),
        ("Second", {"toy/numbers.py": numbers(line_5="FIVE")}),
        ("Third", {"new": text(b"N\n"), "README": text(b"toys\n")}),
    )
    checkout.replace("first.patch", "-line 5", "-line five")
    (checkout.tree / "README").write_bytes(b"games\n")
    problems = resolve(read_series(checkout.layout, "toy").patches, checkout.tree).problems
    assert [problem.file for problem in problems] == [
        "patches/toy/first.patch",
        "patches/toy/third.patch",
    ]


def test_a_tree_that_changed_elsewhere_is_named_by_its_blob(checkout: Checkout) -> None:
    checkout.series(("First", {"toy/numbers.py": numbers(line_5="five")}))
    (checkout.tree / "toy/numbers.py").write_bytes(numbers(line_40="forty").data)
    (problem,) = resolve(read_series(checkout.layout, "toy").patches, checkout.tree).problems
    assert problem.expected.startswith("toy/numbers.py to be blob ")
    assert not resolve(
        read_series(checkout.layout, "toy").patches, checkout.tree, ids=False
    ).problems


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: (t / "toy/numbers.py").unlink(), "a file toy/numbers.py, found none"),
        (lambda t: (t / "new").write_text("here\n"), "no file new yet, found one"),
        (lambda t: (t / "toy/run.sh").chmod(0o644), "mode 100755, found 100644"),
        (lambda t: (t / "README").write_text("toy\nmore\n"), "nothing left of a deleted file"),
        (lambda t: (t / "README").write_text("toys\n"), "'toy' at line 1, found 'toys'"),
        (lambda t: (t / "toy/blob.bin").write_bytes(b"\0"), "toy/blob.bin as its binary diff says"),
    ],
)
def test_another_tree_is_refused(
    checkout: Checkout, change: Callable[[Path], object], expected: str
) -> None:
    checkout.series(
        (
            "First",
            {
                "toy/numbers.py": numbers(line_5="five"),
                "toy/run.sh": text(b"#!/bin/sh\nexit 1\n", "100755"),
                "toy/blob.bin": text(BLOB[:500]),
                "new": text(b"n\n"),
                "README": None,
            },
        )
    )
    change(checkout.tree)
    with pytest.raises(ProblemsError, match=expected):
        patch(checkout.layout, checkout.pin)
    assert not checkout.layout.patched.exists()


@pytest.mark.parametrize("where", ["toy", "toy/numbers.py"])
def test_a_link_in_the_tree_is_never_followed(checkout: Checkout, where: str) -> None:
    checkout.series(("First", {"toy/numbers.py": numbers(line_5="five")}))
    outside = checkout.layout.root / "outside"
    (checkout.tree / where).rename(outside)
    (checkout.tree / where).symlink_to(outside)
    with pytest.raises(ProblemsError, match="not a link"):
        patch(checkout.layout, checkout.pin)


def test_a_file_is_not_taken_for_a_folder(checkout: Checkout) -> None:
    checkout.series(("First", {"a": text(b"a\n")}), ("Second", {"b/c": text(b"c\n")}))
    checkout.replace("second.patch", "b/b/c", "b/a/c")
    checkout.replace("second.patch", "a/b/c", "a/a/c")
    checkout.replace("second.patch", "+++ b/b/c", "+++ b/a/c")
    with pytest.raises(
        ProblemsError, match=r"expected a folder, not a file, at .*a, found another"
    ):
        patch(checkout.layout, checkout.pin)


def test_a_full_disk_leaves_the_tree_as_it_was(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.series(("First", {"toy/numbers.py": numbers(line_5="five")}))
    patch(checkout.layout, checkout.pin)
    before = tree_of(checkout.layout.patched)
    checkout.series()

    def full(source: Path, target: Path, **_: object) -> None:
        (target / "half").mkdir(parents=True)
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(MachineError, match="no space left on the disk"):
        patch(checkout.layout, checkout.pin)
    assert tree_of(checkout.layout.patched) == before
    assert len(list(checkout.layout.patched.iterdir())) == 2


def test_what_a_killed_run_left_is_cleared(checkout: Checkout) -> None:
    left = checkout.layout.patched / ".toy-1.0.123.new"
    left.mkdir(parents=True)
    patch(checkout.layout, checkout.pin)
    assert not left.exists()


def test_a_swap_that_fails_puts_the_old_folder_back(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(FileNotFoundError), new_folder(target):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "old"]


def test_a_tree_that_was_not_fetched_is_named(checkout: Checkout) -> None:
    shutil.rmtree(checkout.tree)
    with pytest.raises(SourceError, match=r"toy-1.0: .* run `python build.py fetch`"):
        patch(checkout.layout, checkout.pin)


def test_an_empty_series_gives_the_pristine_tree(checkout: Checkout) -> None:
    assert tree_of(patch(checkout.layout, checkout.pin)) == tree_of(checkout.tree)
    assert json.loads((checkout.layout.patched / "toy-1.0.json").read_text())["files"] == {}


def test_every_problem_of_a_series_file_is_named(checkout: Checkout) -> None:
    checkout.series(("First", {"new": text(b"n\n")}))
    with (checkout.folder / "series").open("a") as series:
        series.write("first.patch\n../escape.patch\nmissing.patch\r\n\n# note\ngone.patch\n")
    found = [str(problem).split("; run")[0] for problem in load_series(checkout.layout, "toy")[1]]
    name = "the name of a patch file beside this one"
    assert found == [
        "patches/toy/series:3: expected each patch once, found first.patch twice",
        f"patches/toy/series:4: expected {name}, found '../escape.patch'",
        f"patches/toy/series:5: expected {name}, found 'missing.patch\\r'",
        "patches/toy/series:8: expected a file gone.patch, found none",
    ]
