"""A temporary folder of the build's own, for programs that put gigabytes into theirs.

A pip that is killed leaves its downloads where it had them. Here the next run finds them; and a
system's folder may be a part of memory.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from headrace.pipeline.layout import Layout


@contextlib.contextmanager
def scratch(layout: Layout) -> Iterator[dict[str, str]]:
    """Yield the environment that leads a program to an empty folder, which goes with the block."""
    folder = layout.build / "work" / "tmp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield {"TMPDIR": str(folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
