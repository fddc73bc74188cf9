"""The folder that a command writes into: made first, and gone again if nothing came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.console import disk_error


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Make `folder` for the block. If that raises, remove what was made for it and is empty.

    Raises:
        MachineError: the folder cannot be made.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise disk_error(failure, folder) from failure
        yield
    except BaseException:
        for each in made:
            with suppress(OSError):
                each.rmdir()
        raise
