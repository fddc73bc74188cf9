"""Parse what `git diff` writes; counts, order and paths are verified on the way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.pipeline.diff import FILE_MODES, DiffError, FileChange, Hunk, HunkLine, shown
from headrace.pipeline.gitpath import is_inside, name_in_header, unquote

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?\n")
_INDEX = re.compile(rb"index ([0-9a-f]{7,40})\.\.([0-9a-f]{7,40})(?: (\d{6}))?\n")


def parse_diff(lines: Sequence[bytes], first_line: int) -> list[FileChange]:
    """Return the changes in `lines` (each with its newline), the first being `first_line`.

    A signature ("-- " and a version) may follow the last hunk.

    Raises:
        DiffError: a header is malformed or contradicts another, a hunk's counts are wrong, or
            a path leaves the tree.
    """
    return _Parser(lines, first_line).changes()


class _Parser:
    def __init__(self, lines: Sequence[bytes], first_line: int) -> None:
        self.lines = lines
        self.first = first_line
        self.at = 0

    @property
    def line(self) -> int:
        return self.first + self.at

    def peek(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def fail(self, expected: str) -> DiffError:
        text = self.peek()
        found = shown(text) if text else "the end of the file"
        return DiffError(self.line, expected, found)

    def changes(self) -> list[FileChange]:
        changes = []
        while self.at < len(self.lines) and not self._signature():
            changes.append(self._change())
        return changes

    def _signature(self) -> bool:
        return self.peek() == b"-- \n" and len(self.lines) - self.at <= 3

    def _change(self) -> FileChange:
        start = self.at
        if not self.peek().startswith(b"diff --git "):
            raise self.fail("'diff --git a/PATH b/PATH'")
        self._refuse_cr()
        name = name_in_header(self.peek()[len(b"diff --git ") : -1])
        change = FileChange(self.line, name, name)
        self.at += 1
        self._extended(change)
        _check(change)
        if self.peek() == b"GIT binary patch\n":
            while self.at < len(self.lines) and not self.peek().startswith(b"diff --git "):
                if self._signature():
                    break
                self.at += 1
            change.binary = b"".join(self.lines[start : self.at])
        elif self.peek().startswith(b"Binary files "):
            raise self.fail("the bytes of a binary file (git format-patch --binary)")
        elif self.peek().startswith(b"--- "):
            self._names(change)
            self._hunks(change)
        return change

    def _extended(self, change: FileChange) -> None:
        while True:
            text = self.peek()
            word, _, value = text[:-1].decode("utf-8", "surrogateescape").rpartition(" ")
            if found := _INDEX.fullmatch(text):
                change.old_id, change.new_id = found[1].decode(), found[2].decode()
                if found[3]:
                    change.old_mode = change.new_mode = found[3].decode()
            elif word == "old mode":
                change.old_mode = value
            elif word == "new mode":
                change.new_mode = value
            elif word == "new file mode":
                change.old_path, change.new_mode = None, value
            elif word == "deleted file mode":
                change.new_path, change.old_mode = None, value
            elif text.startswith((b"rename from ", b"copy from ")):
                change.old_path = unquote(text.split(b" from ", 1)[1][:-1])
                change.copied = text.startswith(b"copy")
            elif text.startswith((b"rename to ", b"copy to ")):
                change.new_path = unquote(text.split(b" to ", 1)[1][:-1])
            elif word not in ("similarity index", "dissimilarity index"):
                return
            self._refuse_cr()
            self.at += 1

    def _names(self, change: FileChange) -> None:
        for mark, prefix, path in (
            (b"--- ", "a/", change.old_path),
            (b"+++ ", "b/", change.new_path),
        ):
            text = self.peek()
            self._refuse_cr()
            # git ends a name that holds a space with a tab.
            name = unquote(text[len(mark) :].rstrip(b"\n").removesuffix(b"\t"))
            expected = "/dev/null" if path is None else prefix + path
            if not text.startswith(mark) or name != expected:
                raise self.fail(f"'{mark.decode()}{expected}'")
            self.at += 1

    def _hunks(self, change: FileChange) -> None:
        if not self.peek().startswith(b"@@ "):
            raise self.fail("a hunk ('@@ -1,3 +1,4 @@')")
        end, shift = 0, 0
        while self.peek().startswith(b"@@ "):
            hunk = self._hunk()
            new_index = hunk.new_start - 1 if hunk.new_count else hunk.new_start
            if hunk.old_index < end:
                raise DiffError(
                    hunk.line, "hunks in order, none over another", "one that goes back"
                )
            if new_index != hunk.old_index + shift:
                wanted = hunk.old_index + shift + (1 if hunk.new_count else 0)
                raise DiffError(hunk.line, f"+{wanted} as new start", f"+{hunk.new_start}")
            end = hunk.old_index + hunk.old_count
            shift += hunk.new_count - hunk.old_count
            change.hunks.append(hunk)

    def _hunk(self) -> Hunk:
        head_line = self.line
        self._refuse_cr()
        head = _HUNK.fullmatch(self.peek())
        if head is None:
            raise self.fail("a hunk header '@@ -1,3 +1,4 @@'")
        old_start, new_start = int(head[1]), int(head[3])
        old_count = 1 if head[2] is None else int(head[2])
        new_count = 1 if head[4] is None else int(head[4])
        if (old_count and not old_start) or (new_count and not new_start):
            raise self.fail("lines that count from 1")
        self.at += 1
        body: list[HunkLine] = []
        old = new = 0
        while (text := self.peek()) and text[:1] in b" -+\\":
            if (old, new) == (old_count, new_count) and self._signature():
                break
            kind = chr(text[0])
            if not text.endswith(b"\n"):
                raise self.fail("a newline at the end")
            if kind == "\\":
                if not body or not body[-1].text.endswith(b"\n"):
                    raise self.fail("a line of the file before '\\ No newline'")
                last = body[-1]
                body[-1] = last._replace(text=last.text.removesuffix(b"\n"))
            else:
                body.append(HunkLine(kind, text[1:], self.line))
                old += kind != "+"
                new += kind != "-"
            self.at += 1
        if (old, new) != (old_count, new_count):
            # An emptied context line stops the count early, and is what to name then.
            if self.peek() == b"\n" and (old < old_count or new < new_count):
                raise self.fail("' ', '-', '+' or '\\' first (did an editor strip spaces?)")
            raise DiffError(
                head_line,
                f"{old_count} old and {new_count} new lines as the hunk header says",
                f"{old} old and {new} new",
            )
        if old_count == 0 and new_count == 0:
            raise DiffError(head_line, "a hunk that changes something", "an empty one")
        return Hunk(head_line, old_start, old_count, new_start, new_count, tuple(body))

    def _refuse_cr(self) -> None:
        if self.peek().endswith(b"\r\n"):
            raise self.fail("LF line ends in the headers of a diff")
        if self.peek() and not self.peek().endswith(b"\n"):
            raise self.fail("a newline at the end")


def _check(change: FileChange) -> None:
    if "" in (change.old_path, change.new_path):
        raise DiffError(change.line, "one name, or 'rename from' and 'rename to'", "neither")
    for path in (change.old_path, change.new_path):
        if path is not None and not is_inside(path):
            raise DiffError(change.line, "a path inside the tree", repr(path))
    for mode in (change.old_mode, change.new_mode):
        if mode and mode not in FILE_MODES:
            raise DiffError(change.line, f"a plain file ({' or '.join(FILE_MODES)})", mode)
