"""Hunks apply at their stated lines with every old line equal, or not at all."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.pipeline.diff import FileChange, Hunk, HunkLine, split_lines
from headrace.pipeline.diffparse import parse_diff
from headrace.pipeline.exact import InexactError, apply_hunks, locate
from headrace.pipeline.git import clean_environment

# Carriage returns, form feeds and bytes of no encoding are content like any other.
line = st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"").replace(b"\0", b""))
lines = st.lists(line, max_size=30)
git_examples = settings(max_examples=40, deadline=None)


def content(parts: list[bytes], ends: bool = True) -> bytes:
    return b"\n".join(parts) + (b"\n" if parts and ends else b"")


def changes_between(old: bytes, new: bytes) -> list[FileChange]:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in (("old", old), ("new", new)):
            (Path(folder) / name / "dir").mkdir(parents=True)
            (Path(folder) / name / "dir" / "f").write_bytes(data)
        done = subprocess.run(
            ["git", "diff", "--no-index", "--text", "--full-index", "--no-prefix", "old", "new"],
            cwd=folder, env=clean_environment(), capture_output=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    diff = done.stdout.replace(b"old/dir/f", b"a/dir/f").replace(b"new/dir/f", b"b/dir/f")
    return parse_diff(split_lines(diff), 1)


def edited(old: list[bytes], edits: list[tuple[int, int, list[bytes]]]) -> list[bytes]:
    new = list(old)
    for at, size, put in edits:
        new[at : at + size] = put
    return new


edits = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.lists(line, max_size=3)))


@git_examples
@given(lines, edits, st.booleans(), st.booleans())
def test_a_diff_of_git_gives_the_new_content(
    old: list[bytes], change: list[tuple[int, int, list[bytes]]], old_end: bool, new_end: bool
) -> None:
    before, after = content(old, old_end), content(edited(old, change), new_end)
    assume(before != after)
    (found,) = changes_between(before, after)
    assert b"".join(apply_hunks(split_lines(before), found.hunks)) == after


@git_examples
@given(st.integers(8, 40), st.data())
def test_every_shift_is_refused(size: int, data: st.DataObject) -> None:
    old = [b"%d" % n for n in range(size)]
    at = data.draw(st.integers(0, size - 1))
    (found,) = changes_between(content(old), content(edited(old, [(at, 1, [b"new"])])))
    first = found.hunks[0].old_index
    above = data.draw(st.integers(0, first))
    shift = data.draw(st.integers(-above, 5).filter(bool))
    moved = [b"x"] * shift + old if shift > 0 else old[-shift:]
    with pytest.raises(InexactError) as refused:
        apply_hunks(split_lines(content(moved)), found.hunks)
    assert refused.value.line == found.hunks[0].line
    assert refused.value.found.endswith(f"(applies only with an offset of {shift:+d})")


@git_examples
@given(st.integers(8, 40), st.data())
def test_every_other_old_line_is_refused(size: int, data: st.DataObject) -> None:
    old = [b"%d" % n for n in range(size)]
    at = data.draw(st.integers(0, size - 1))
    (found,) = changes_between(content(old), content(edited(old, [(at, 1, [b"new"])])))
    hunk = found.hunks[0]
    wrong = data.draw(st.integers(hunk.old_index, hunk.old_index + hunk.old_count - 1))
    other = edited(old, [(wrong, 1, [b"%d " % wrong])])
    with pytest.raises(InexactError) as refused:
        apply_hunks(split_lines(content(other)), found.hunks)
    named = [body for body in hunk.body if body.line == refused.value.line]
    assert [body.text for body in named] == [b"%d\n" % wrong]
    assert "trailing space" in refused.value.found


@given(lines, st.lists(line, min_size=1, max_size=3), st.integers(0, 30))
def test_locate_gives_the_nearest_place(text: list[bytes], block: list[bytes], near: int) -> None:
    places = [i for i in range(len(text)) if text[i : i + len(block)] == block]
    found = locate(text, block, near)
    if not places:
        assert found is None
    else:
        assert found in places
        assert abs(found - near) == min(abs(place - near) for place in places)


def test_a_hunk_past_the_end_is_refused() -> None:
    old = [b"%d" % n for n in range(20)]
    (found,) = changes_between(content(old), content([*old, b"new"]))
    with pytest.raises(InexactError, match="found the file's end"):
        apply_hunks(split_lines(content(old[:18])), found.hunks)


def test_a_lost_newline_at_the_end_is_refused() -> None:
    (found,) = changes_between(b"a\nb\n", b"a\nb\nc\n")
    with pytest.raises(InexactError, match="trailing space or line end"):
        apply_hunks(split_lines(b"a\nb"), found.hunks)


def test_an_insertion_past_the_end_is_refused() -> None:
    hunk = Hunk(7, 3, 0, 4, 1, (HunkLine("+", b"new\n", 8),))
    assert apply_hunks([b"1\n", b"2\n", b"3\n"], [hunk])[3:] == [b"new\n"]
    with pytest.raises(InexactError, match="line 7: expected line 4, found a file of 2 lines"):
        apply_hunks([b"1\n", b"2\n"], [hunk])
