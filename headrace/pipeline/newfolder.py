"""Make a folder whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a path for the block to make a folder at; it then takes the place of `target`.

    If the block fails, `target` stays as it was and nothing is left of the new folder.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.new")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}.*.*"):
        if leftover.suffix in (".new", ".old"):
            shutil.rmtree(leftover)
    try:
        yield partial
        if target.exists():
            target.rename(old)
        partial.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
