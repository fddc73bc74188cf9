"""With `pcp_shard_store` off, the patches of the sharded store change nothing.

The same steps are driven on the whole series and on the series without those patches. Both make
the same calls with the same arguments and results, and leave the same bytes on the server.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.pipeline.layout import Layout
from headrace.pipeline.series import read_series
from tests.suites.sites import ROOT, site

# The pull requests whose patches the switch turns on.
SHARDED = {f"https://github.com/LMCache/LMCache/pull/{n}" for n in (5545, 5548, 5550, 5553)}
SECONDS = 120

SCENARIOS = [
    ("0", "mla", "sync"),
    ("1", "mla", "sync"),
    ("1", "heads", "sync"),
    ("0", "mla", "async"),
    ("1", "heads", "async"),
]


@pytest.fixture(scope="module")
def hardened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The patched LMCache, with the patches of the sharded store taken back."""
    folder = tmp_path_factory.mktemp("hardened")
    shutil.copytree(site("patched") / "lmcache", folder / "lmcache")
    patches = read_series(Layout(ROOT), "lmcache").patches
    sharded = [p for p in patches if {f.value for f in p.fields if f.name == "Origin"} & SHARDED]
    assert sharded, "the series has no patch of the sharded store"
    for patch in reversed(sharded):
        subprocess.run(
            ["git", "apply", "--reverse", "--include=lmcache/*", str(ROOT / patch.where)],
            cwd=folder, check=True,
        )  # fmt: skip
    assert not (folder / "lmcache/v1/pcp_shard").exists()
    return folder


@pytest.mark.parametrize("switch", ["unset", "false"])
@pytest.mark.parametrize(("rank", "kind", "mode"), SCENARIOS)
def test_the_same_calls(hardened: Path, rank: str, kind: str, mode: str, switch: str) -> None:
    without = trace(hardened, rank, kind, mode, "unset")
    assert trace(site("patched"), rank, kind, mode, switch) == without
    assert any("batched_put" in line for line in without) or (rank, kind) == ("1", "mla")


def test_a_changed_call_shows(hardened: Path) -> None:
    assert trace(hardened, "0", "mla", "sync", "unset") != trace(
        hardened, "1", "heads", "sync", "unset"
    )


@functools.cache
def trace(folder: Path, *words: str) -> list[str]:
    """Return the calls that the steps make on the LMCache in `folder`, a line for each step."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.patches.call_trace", *words],
        cwd=ROOT, text=True, capture_output=True, timeout=SECONDS, check=False,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines, ran.stderr
    return lines
