"""Files of an upstream tree, and what they become, without a copy of the tree."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headrace.errors import SeriesError


@dataclass(frozen=True)
class Blob:
    """A file's content and its git mode, "100644" or "100755"."""

    mode: str
    data: bytes

    @property
    def id(self) -> str:
        """Its git object id; SHA-1 is what a diff's index line holds, not a safeguard here."""
        head = b"blob %d\0" % len(self.data)
        return hashlib.sha1(head + self.data, usedforsecurity=False).hexdigest()


class Tree:
    """A folder as it would be after changes that are kept in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: dict[str, Blob | None] = {}

    def get(self, path: str) -> Blob | None:
        """Return a file, or None if there is none.

        Raises:
            SeriesError: the name is a folder's or a link's, or lies behind a link or a file.
        """
        if path in self.changed:
            return self.changed[path]
        for parent in PurePosixPath(path).parents:
            if self.changed.get(str(parent)) is not None:
                raise SeriesError(f"a folder, not a file, at {self.root / parent}")
        return self.original(path)

    def original(self, path: str) -> Blob | None:
        """Return a file as it is on disk, or None; raises like `get`."""
        *parents, name = path.split("/")
        folder = self.root
        for parent in parents:
            folder = folder / parent
            if folder.is_symlink() or folder.is_file():
                raise SeriesError(f"a folder, not a link or a file, at {folder}")
        file = folder / name
        try:
            mode = file.lstat().st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(mode):
            raise SeriesError(f"a plain file, not a link or a folder, at {file}")
        return Blob("100755" if mode & stat.S_IXUSR else "100644", file.read_bytes())

    def touched(self) -> dict[str, Blob | None]:
        """Return the files that differ in name from what is on disk or were written."""
        return {
            path: blob
            for path, blob in sorted(self.changed.items())
            if blob is not None or self.original(path) is not None
        }
