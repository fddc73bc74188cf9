"""Read one .patch file: subject, header fields, and a diff that is verified while it is read.

A patch file is `git format-patch` output. The first paragraph after the subject holds the
header fields, one a line; the reasons follow as prose, after a blank line:

    Subject: Report a missing key as a miss

    Origin: https://github.com/LMCache/LMCache/pull/5551
    Forwarded: no
    Upstream-Status: Submitted [https://github.com/LMCache/LMCache/pull/5551]
    Applies-To: lmcache 0.5.5
    Mode: native client
    Regression-Test: tests/patches/lmcache/test_missing_key.py::test_null_reply

`Regression-Test` may be given several times; every other field stands exactly once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from headrace.pipeline.diff import DiffError, FileChange, LineError, shown, split_lines
from headrace.pipeline.diffparse import parse_diff
from headrace.pipeline.fields import REPEATABLE, Field, field_problems, fields_of
from headrace.pipeline.problem import Problem, ProblemsError, rewrite_with

MAX_SUBJECT = 100

_MAIL_HEADER = re.compile(r"(?:From|Date|Subject|MIME-Version|Content-[A-Za-z-]+): ")
# Lines at which `git am` would end the message early.
_ENDS_MESSAGE = re.compile(r"---(?: .*)?|diff -.*|Index: .*|From [0-9a-f]{40} .*")


@dataclass(frozen=True)
class PatchFile:
    """One patch as it stands in the checkout.

    Attributes:
        where: path relative to the checkout, for messages.
        body: the commit message after its subject, without blank lines at either end.
        problems: what is wrong with the subject and the header fields.
    """

    path: Path
    where: str
    data: bytes
    subject: str
    body: str
    fields: tuple[Field, ...]
    changes: tuple[FileChange, ...]
    problems: tuple[Problem, ...]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def project(self) -> str:
        return self.path.parent.name

    @property
    def message(self) -> str:
        """The commit message: subject, blank line, body."""
        return f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def regression_tests(self) -> tuple[str, ...]:
        """Test ids, relative to the checkout."""
        return tuple(f.value for f in self.fields if f.name == REPEATABLE)

    @property
    def merged_upstream(self) -> bool:
        """Whether the header says that upstream has it, so that no release may carry it."""
        return self.value("Upstream-Status").startswith("Backport ")

    def value(self, name: str) -> str:
        """Return the first value of a field, "" if it is missing."""
        return next((field.value for field in self.fields if field.name == name), "")

    def problem(self, failure: LineError) -> Problem:
        """Return `failure` as a problem of this file."""
        run = rewrite_with(self.project)
        return Problem(self.where, failure.line, failure.expected, failure.found, run)


def file_name(subject: str) -> str:
    """Return the name of the patch file with that subject."""
    return re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-") + ".patch"


def read_patch(path: Path, root: Path) -> PatchFile:
    """Read a patch file of the checkout `root`; raises like `parse_patch`."""
    return parse_patch(path, root, path.read_bytes())


def parse_patch(path: Path, root: Path, data: bytes) -> PatchFile:
    """Parse `data` as the patch file at `path` in the checkout `root`.

    Wrong header fields are kept in `problems`, so that such a patch can still be opened and
    corrected.

    Raises:
        ProblemsError: the data is not a patch, or its diff cannot be trusted.
    """
    where = path.relative_to(root).as_posix()
    try:
        return _parse(path, where, data)
    except LineError as failure:
        run = f"`git log -p {where}` to see who changed it by hand"
        raise ProblemsError(
            [Problem(where, failure.line, failure.expected, failure.found, run)]
        ) from failure


def message_problem(message: str) -> str:
    """Return why a commit message would not survive in a patch file, "" if it would."""
    for line in message.split("\n"):
        if _ENDS_MESSAGE.fullmatch(line):
            return f"the line {line!r}, which ends a message in a patch file"
        if "\r" in line:
            return "a carriage return"
    return ""


def _parse(path: Path, where: str, data: bytes) -> PatchFile:
    lines = split_lines(data)
    diff_at = next((i for i, line in enumerate(lines) if line.startswith(b"diff --git ")), None)
    if diff_at is None:
        raise DiffError(max(len(lines), 1), "a diff ('diff --git …')", "none")
    head = [_decode(line, number) for number, line in enumerate(lines[:diff_at], 1)]
    if not re.match(r"From [0-9a-f]{40} ", head[0] if head else ""):
        raise DiffError(1, "'From ' and a commit id (git format-patch)", shown(lines[0]))
    subject, subject_line, body_at = _mail_headers(head)
    message_end = head.index("---", body_at) if "---" in head[body_at:] else diff_at
    while body_at < message_end and not head[body_at].strip():
        body_at += 1
    body = "\n".join(head[body_at:message_end]).rstrip()
    fields = fields_of(body, body_at + 1) if body else []
    run = rewrite_with(path.parent.name)
    problems = _subject_problems(path, where, subject, subject_line)
    problems += field_problems(where, subject_line, fields, run)
    changes = parse_diff(lines[diff_at:], diff_at + 1)
    return PatchFile(
        path, where, data, subject, body, tuple(fields), tuple(changes), tuple(problems)
    )


def _decode(line: bytes, number: int) -> str:
    if line.endswith(b"\r\n"):
        raise DiffError(number, "LF line ends", "CRLF (did an editor or git convert them?)")
    try:
        return line.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as wrong:
        raise DiffError(number, "UTF-8", shown(line)) from wrong


def _mail_headers(head: list[str]) -> tuple[str, int, int]:
    """Return subject, its line (from 1), and the index of the first line after the headers."""
    subject, subject_line, at = "", 0, 1
    while at < len(head) and head[at]:
        if not _MAIL_HEADER.match(head[at]):
            raise DiffError(at + 1, "From, Date, Subject or a blank line", repr(head[at]))
        words = [head[at]]
        # git folds a long subject; the next line then starts with a space.
        while at + len(words) < len(head) and head[at + len(words)].startswith(" "):
            words.append(head[at + len(words)].strip())
        if head[at].startswith("Subject: "):
            subject_line = at + 1
            subject = " ".join(words).removeprefix("Subject: ")
        at += len(words)
    if not subject_line:
        raise DiffError(at + 1, "a 'Subject:' above this line", "none")
    return re.sub(r"^\[PATCH[^\]]*\] *", "", subject), subject_line, at


def _subject_problems(path: Path, where: str, subject: str, line: int) -> list[Problem]:
    run = rewrite_with(path.parent.name)
    if not subject.isascii() or "=?" in subject or not 0 < len(subject) <= MAX_SUBJECT:
        wanted = f"a subject of 1 to {MAX_SUBJECT} ASCII characters"
        return [Problem(where, line, wanted, repr(subject), run)]
    if path.name != file_name(subject):
        wanted = f"the name {file_name(subject)} for this subject"
        return [Problem(where, line, wanted, path.name, run)]
    return []
