"""What a diff says: changes of files, their hunks, and the lines of those.

Content is bytes: sources may hold CRLF line ends or be in any encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

FILE_MODES = ("100644", "100755")


class LineError(Exception):
    """Something is wrong at `line` (from 1) of a patch file."""

    def __init__(self, line: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}: expected {expected}, found {found}")
        self.line, self.expected, self.found = line, expected, found


class DiffError(LineError):
    """The text is not a diff that can be trusted."""


class HunkLine(NamedTuple):
    """One line of a hunk: kind is " ", "-" or "+"; text has no newline if its file ends there."""

    kind: str
    text: bytes
    line: int


@dataclass(frozen=True)
class Hunk:
    """One block of changes; `line` is that of its "@@" in the patch file, from 1."""

    line: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    body: tuple[HunkLine, ...]

    @property
    def old(self) -> list[bytes]:
        return [line.text for line in self.body if line.kind != "+"]

    @property
    def new(self) -> list[bytes]:
        return [line.text for line in self.body if line.kind != "-"]

    @property
    def old_index(self) -> int:
        """Index of the first line that the hunk takes away or keeps, from 0."""
        return self.old_start - 1 if self.old_count else self.old_start


@dataclass
class FileChange:
    """What a patch does to one file.

    Attributes:
        line: of "diff --git" in the patch file, from 1.
        old_path, new_path: None where the file is created or deleted; they differ in a rename.
        old_mode, new_mode: "100644" or "100755"; "" where the diff does not say.
        old_id, new_id: git blob ids (maybe abbreviated); "" where the content stays as it is.
        copied: `old_path` stays, too.
        binary: the whole section, for `git apply`; b"" for text.
    """

    line: int
    old_path: str | None
    new_path: str | None
    old_mode: str = ""
    new_mode: str = ""
    old_id: str = ""
    new_id: str = ""
    copied: bool = False
    binary: bytes = b""
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The path to name in a message."""
        return self.new_path or self.old_path or ""


def split_lines(data: bytes) -> list[bytes]:
    """Split at LF alone, each line with its newline."""
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def shown(text: bytes) -> str:
    """Return `text` as it stands in a message: one line, quoted, not too long."""
    plain = repr(text.rstrip(b"\n").decode("utf-8", "backslashreplace"))
    return plain if len(plain) <= 80 else plain[:76] + "…" + plain[-1]
