"""The two builds of LMCache that real runs need, and how a command is run on one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.pipeline.layout import Layout

ROOT = Path(__file__).resolve().parents[2]


def site(name: str) -> Path:
    """Return the folder with the "stock" or "patched" lmcache package.

    HEADRACE_STOCK_SITE and HEADRACE_PATCHED_SITE override the build's.
    """
    named = os.environ.get(f"HEADRACE_{name.upper()}_SITE")
    folder = Path(named) if named else Layout(ROOT).build / "site" / name
    assert list((folder / "lmcache").glob("lmcache_redis*.so")), (
        f"{folder}: expected a built lmcache package, found none; run: make build"
    )
    return folder


def headrace(
    *words: str | Path,
    path: Path | None = None,
    seconds: float = 120,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the `headrace` command of this checkout, with `path` first on the module path."""
    running = start(*words, path=path, env=env)
    try:
        output, errors = running.communicate(timeout=seconds)
    finally:
        # It ends its servers when asked to; nothing is left to end after a normal return.
        running.terminate()
        running.wait(30)
    return subprocess.CompletedProcess(running.args, running.returncode, output, errors)


def start(
    *words: str | Path, path: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start what `headrace` runs, without waiting for it."""
    folders = [str(folder) for folder in (path, ROOT) if folder]
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **(env or {})},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
