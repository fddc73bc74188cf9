"""Apply changes exactly: at the stated lines, with every context line equal, or not at all.

`git apply` and `patch` move a hunk silently when its lines are found elsewhere, which is how a
patch ends up in the wrong function after an upstream release.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import SeriesError
from headrace.pipeline.diff import FileChange, Hunk, LineError, shown, split_lines
from headrace.pipeline.git import Git
from headrace.pipeline.tree import Blob, Tree

MAX_FUZZ = 2


class InexactError(LineError):
    """A change does not apply exactly; `line` counts from 1 in the patch file."""


def apply_hunks(lines: Sequence[bytes], hunks: Sequence[Hunk]) -> list[bytes]:
    """Return `lines` (each with its newline) after `hunks`, which go from top to bottom.

    Raises:
        InexactError: a line that a hunk keeps or removes is not at the stated place.
    """
    result: list[bytes] = []
    done = 0
    for hunk in hunks:
        start, end = hunk.old_index, hunk.old_index + hunk.old_count
        if start > len(lines) or list(lines[start:end]) != hunk.old:
            raise _mismatch(lines, hunk)
        result += [*lines[done:start], *hunk.new]
        done = end
    result += lines[done:]
    for number, line in enumerate(result[:-1], 1):
        if not line.endswith(b"\n"):
            raise InexactError(
                hunks[-1].line, "no newline missing before the last line", f"one at line {number}"
            )
    return result


def locate(lines: Sequence[bytes], block: Sequence[bytes], near: int = 0) -> int | None:
    """Return the index where `block` stands in `lines`, the closest to `near`, or None."""
    size = len(block)
    places = (i for i in range(len(lines) - size + 1) if lines[i] == block[0]) if block else ()
    hits = [i for i in places if list(lines[i : i + size]) == list(block)]
    return min(hits, key=lambda i: abs(i - near), default=None)


def _mismatch(lines: Sequence[bytes], hunk: Hunk) -> InexactError:
    start = hunk.old_index
    place = locate(lines, hunk.old, start)
    if place is not None and place != start:
        return InexactError(
            hunk.line,
            f"these lines at line {start + 1} exactly",
            f"them at line {place + 1} (applies only with an offset of {place - start:+d})",
        )
    fuzz = _fuzz(lines, hunk)
    hint = f" (applies only with fuzz {fuzz})" if fuzz else ""
    at = start
    for line in hunk.body:
        if line.kind == "+":
            continue
        if at >= len(lines):
            return InexactError(line.line, f"{shown(line.text)} at line {at + 1}", "the file's end")
        if lines[at] != line.text:
            found = f"{shown(lines[at])}{_difference(lines[at], line.text)}{hint}"
            return InexactError(line.line, f"{shown(line.text)} at line {at + 1}", found)
        at += 1
    return InexactError(hunk.line, f"line {start + 1}", f"a file of {len(lines)} lines")


def _difference(found: bytes, expected: bytes) -> str:
    if found.rstrip() == expected.rstrip():
        return " (they differ in trailing space or line end)"
    return ""


def _fuzz(lines: Sequence[bytes], hunk: Hunk) -> int:
    # What GNU patch calls fuzz: that many context lines at either end left out of the match.
    old = hunk.old
    kinds = [line.kind for line in hunk.body]
    lead = next((i for i, kind in enumerate(kinds) if kind != " "), 0)
    tail = next((i for i, kind in enumerate(reversed(kinds)) if kind != " "), 0)
    for fuzz in range(1, MAX_FUZZ + 1):
        core = old[min(fuzz, lead) : len(old) - min(fuzz, tail)]
        if core and locate(lines, core) is not None:
            return fuzz
    return 0


def apply_change(tree: Tree, change: FileChange) -> dict[str, Blob | None]:
    """Return what `change` makes of the files it names; `tree` stays as it is.

    Raises:
        InexactError: a file is missing or in the way, or differs in mode or content.
    """
    try:
        before = tree.get(change.old_path) if change.old_path is not None else None
        in_way = change.new_path not in (None, change.old_path) and tree.get(change.path)
    except SeriesError as unsafe:
        raise InexactError(change.line, str(unsafe), "another") from unsafe
    if change.old_path is not None and before is None:
        raise InexactError(change.line, f"a file {change.old_path}", "none")
    if in_way:
        raise InexactError(change.line, f"no file {change.path} yet", "one")
    old = before or Blob("100644", b"")
    if before is not None and change.old_mode not in ("", before.mode):
        raise InexactError(change.line, f"mode {change.old_mode}", before.mode)
    if change.binary:
        data = _apply_binary(old, change)
    else:
        data = b"".join(apply_hunks(split_lines(old.data), change.hunks))
    if change.new_path is None:
        if data:
            raise InexactError(change.line, "nothing left of a deleted file", f"{len(data)} bytes")
        return {change.path: None}
    result: dict[str, Blob | None] = {change.new_path: Blob(change.new_mode or old.mode, data)}
    if change.old_path not in (None, change.new_path) and not change.copied:
        result[str(change.old_path)] = None
    return result


def check_ids(change: FileChange, before: Blob | None, after: Blob | None) -> None:
    """Raise InexactError unless the index line names the content before and after the change."""
    for blob, stated, when in (
        (before, change.old_id, "before"),
        (after, change.new_id, "after"),
    ):
        found = blob.id if blob else "0" * 40
        if stated and not found.startswith(stated):
            raise InexactError(
                change.line, f"{change.path} to be blob {stated[:12]} {when} this patch", found[:12]
            )


def _apply_binary(old: Blob, change: FileChange) -> bytes:
    # git checks both blob ids of a binary diff, so it cannot be inexact.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        git = Git.create(Path(folder) / "git", tree)
        if change.old_path is not None:
            file = tree / change.old_path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(old.data)
            file.chmod(0o755 if old.mode == "100755" else 0o644)
        done = git.attempt("apply", "--whitespace=nowarn", "-", stdin=change.binary)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise InexactError(
                change.line, f"{change.path} as its binary diff says", said[-1] if said else "other"
            )
        return (tree / change.path).read_bytes() if change.new_path is not None else b""
