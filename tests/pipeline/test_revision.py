"""An image is labelled with the commit of its checkout, whatever repository the caller is in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GIT = ("git", "-c", "user.name=tests", "-c", "user.email=tests@example.org")
# The entry of `build.py`, with a command of ours in place of its own.
ASK = """
import sys
from pathlib import Path
from headrace.pipeline import cli
from headrace.pipeline.layout import Layout
from headrace.pipeline.revision import read_revision
cli.app = lambda: print(read_revision(Layout(Path(sys.argv[1]))).name)
cli.main()
"""


def repository(folder: Path) -> str:
    """Make a repository with one commit; return the commit's id."""
    subprocess.run([*GIT, "init", "--quiet", folder], check=True)
    (folder / "file").write_text(folder.name)
    subprocess.run([*GIT, "-C", folder, "add", "--all"], check=True)
    subprocess.run([*GIT, "-C", folder, "commit", "--quiet", "-m", "x"], check=True)
    named = subprocess.run(
        [*GIT, "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return named.stdout.strip()


def test_the_repository_of_a_git_hook_does_not_name_the_image(tmp_path: Path) -> None:
    own, other = repository(tmp_path / "own"), repository(tmp_path / "other")
    assert own != other
    hook = {"GIT_DIR": str(tmp_path / "other" / ".git"), "GIT_WORK_TREE": str(tmp_path / "other")}
    done = subprocess.run(
        [sys.executable, "-c", ASK, tmp_path / "own"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **hook},
    )  # fmt: skip
    assert done.stdout == f"{own}\n", done.stderr
