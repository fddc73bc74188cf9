"""Commits to patch files and back, so that the bytes depend on the commits alone.

Whatever an author's git is set to, a patch file has a zero commit id, full blob ids, no
signature, no statistics, and one fixed author and date.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.pipeline.git import EMAIL, EPOCH, NAME, Git
from headrace.pipeline.gitpath import quote
from headrace.pipeline.tree import Blob

FORMAT = (
    "--stdout",
    "--zero-commit",
    "--no-signature",
    "--keep-subject",
    "--no-stat",
    "--patch",
    "--full-index",
    "--binary",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "-M50%",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
)


class Commit(NamedTuple):
    """What one commit says, and the files that it writes (None: deletes)."""

    message: str
    files: Mapping[str, Blob | None]


@contextlib.contextmanager
def scratch_repository(objects: Path | None = None) -> Iterator[Git]:
    """Give an empty bare repository for the block, which also sees the objects in `objects`."""
    with tempfile.TemporaryDirectory(prefix="headrace-git-") as folder:
        git = Git.create(Path(folder) / "repository.git")
        if objects is not None:
            alternates = git.git_dir / "objects" / "info" / "alternates"
            alternates.write_text(f"{objects}\n")
        yield git


def write_commits(git: Git, commits: Sequence[Commit], base: str | None = None) -> list[str]:
    """Add `commits` one upon another to `git`, the first upon `base`; return their ids."""
    stream = bytearray()
    who = f"{NAME} <{EMAIL}> {EPOCH} +0000"
    for number, commit in enumerate(commits, 1):
        stream += f"commit refs/headrace/import\nmark :{number}\n".encode()
        stream += f"author {who}\ncommitter {who}\n".encode()
        stream += _data(commit.message.encode())
        if number == 1 and base is not None:
            stream += f"from {base}\n".encode()
        for path, blob in sorted(commit.files.items(), key=lambda item: item[1] is not None):
            if blob is None:
                stream += b"D " + quote(path) + b"\n"
            else:
                stream += b"M %s inline %s\n" % (blob.mode.encode(), quote(path))
                stream += _data(blob.data)
        stream += b"\n"
    marks = git.git_dir / "headrace-marks"
    git.run("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin=bytes(stream))
    found = dict(line.split() for line in marks.read_text().splitlines())
    marks.unlink()
    git.run("update-ref", "-d", "refs/headrace/import")
    return [found[f":{number}"] for number in range(1, len(commits) + 1)]


def patch_bytes(git: Git, commit: str) -> bytes:
    """Return the patch file of `commit`, which was made by `write_commits` or `normalize`."""
    return git.run("format-patch", *FORMAT, "-1", commit)


def normalize(git: Git, tree: str, message: str, parent: str | None) -> str:
    """Return a commit of `tree` with the fixed author and date, upon `parent`."""
    parents = ["-p", parent] if parent else []
    made = git.run("commit-tree", tree, *parents, "-F", "-", stdin=message.encode())
    return made.decode().strip()


def tidy_message(message: str, applies_to: str) -> str:
    """Return `message` as a patch file gives it back, its Applies-To field brought up to date."""
    subject, _, body = message.strip().partition("\n\n")
    lines = [line.rstrip() for line in body.strip("\n").split("\n")]
    end = lines.index("") if "" in lines else len(lines)
    for index in range(end):
        lines[index] = re.sub(r"^Applies-To: .*", f"Applies-To: {applies_to}", lines[index])
    body = "\n".join(lines).strip("\n")
    subject = " ".join(subject.split())
    return f"{subject}\n\n{body}\n" if body else f"{subject}\n"


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)
