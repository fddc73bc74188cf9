"""Open a series as commits in a git work tree.

    python build.py edit lmcache       # build/edit/lmcache: one commit a patch
    … git commit, git rebase -i, git commit --amend …
    python build.py refresh lmcache    # patches/lmcache is what the commits say

The header fields stand in the commit message, as the first paragraph after the subject. Order
in the series is the order of the commits; the name of a patch file comes from its subject.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace.console import disk_error, say, working
from headrace.errors import SeriesError
from headrace.pipeline.export import Commit, write_commits
from headrace.pipeline.git import EMAIL, NAME, Git
from headrace.pipeline.layout import Layout
from headrace.pipeline.newfolder import new_folder
from headrace.pipeline.patchfile import PatchFile
from headrace.pipeline.pins import Pin, load_pins
from headrace.pipeline.problem import ProblemsError
from headrace.pipeline.resolve import resolve
from headrace.pipeline.series import Series, load_series, require_tree
from headrace.pipeline.worktree import (
    BASE,
    WRITTEN,
    base_message,
    conflicts,
    edit_folder,
    refuse_to_lose_work,
    work_tree,
)

# For the person who commits there: no signature, and an identity where none is set.
SETTINGS = {
    "commit.gpgSign": "false",
    "user.name": NAME,
    "user.email": EMAIL,
}


def edit(layout: Layout, project: str, *, discard: bool = False) -> Path:
    """Open the series of `project` as commits on its pristine tree; return the work tree.

    Patches that apply exactly become the commits they were made from. From the first one that
    does not, `git am -3` takes over, as far as it gets.

    Args:
        discard: throw away commits and changes that were not written back.

    Raises:
        SeriesError: the work tree holds work that was not written back, or a patch conflicts:
            the work tree is then ready to resolve it.
        ProblemsError: a patch file cannot be read.
    """
    pin = load_pins(layout.pins).get(project)
    pristine = require_tree(layout, pin)
    folder = edit_folder(layout, project)
    if folder.exists() and not discard:
        refuse_to_lose_work(folder, project)
    series, problems = load_series(layout, project)
    # Header fields may be wrong: this is where they get corrected.
    correctable = {problem for patch in series.patches for problem in patch.problems}
    if broken := [problem for problem in problems if problem not in correctable]:
        raise ProblemsError(broken)
    try:
        with working(f"opening {folder}"), new_folder(folder) as partial:
            done = _open(partial, layout, pin, series, pristine)
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    if done < len(series.patches):
        _apply_rest(folder, project, series.patches[done:])
    count = work_tree(folder).text("rev-list", "--count", f"{BASE}..HEAD")
    say(f"{folder}: {count} of {len(series.patches)} patches as commits on {pin.folder}")
    return folder


def _open(folder: Path, layout: Layout, pin: Pin, series: Series, pristine: Path) -> int:
    """Make the work tree at `folder`; return how many patches became commits."""
    shutil.copytree(pristine, folder, symlinks=True)
    git = Git.create(folder / ".git", folder)
    for key, value in SETTINGS.items():
        git.run("config", key, value)
    git.run("add", "--all", "--force", ".")
    git.run("commit", "--quiet", "--allow-empty", "--file=-", stdin=base_message(pin).encode())
    git.run("update-ref", BASE, "HEAD")
    commits = resolve(series.patches, pristine, ids=False).commits
    if commits:
        git.run("reset", "--quiet", "--hard", write_commits(git, commits, BASE)[-1])
    if len(commits) < len(series.patches):
        _add_older_releases(git, layout, pin, series)
    git.run("update-ref", WRITTEN, "HEAD")
    return len(commits)


def _add_older_releases(git: Git, layout: Layout, pin: Pin, series: Series) -> None:
    # A three-way merge starts from the files that a patch was made for.
    for version in {patch.value("Applies-To").partition(" ")[2] for patch in series.patches}:
        older = layout.sources / f"{pin.id}-{version}"
        if version in ("", pin.version) or not older.is_dir():
            continue
        resolved = resolve(series.patches, older, ids=False)
        touched = {path: resolved.tree.original(path) for path in resolved.tree.changed}
        base = Commit("base\n", {path: blob for path, blob in touched.items() if blob})
        write_commits(git, [base, *resolved.commits])


def _apply_rest(folder: Path, project: str, patches: Sequence[PatchFile]) -> None:
    git = work_tree(folder)
    say(f"{patches[0].where} does not apply exactly: `git am -3` from here on")
    # From now on this tree holds more than patches/ does.
    git.run("update-ref", "-d", WRITTEN)
    done = git.attempt(
        "am", "--3way", "--keep-cr", "--keep-non-patch", "--no-scissors", "--whitespace=nowarn",
        *(str(patch.path) for patch in patches),
    )  # fmt: skip
    if done.returncode == 0:
        return
    places = conflicts(git)
    said = (done.stdout + done.stderr).decode(errors="replace")
    stopped = re.search(r"Patch failed at \d+ (.*)", said)
    raise SeriesError(
        f"{folder}: expected every patch to apply, found a conflict in "
        f"'{stopped[1] if stopped else 'a patch'}'{': ' if places else ''}{', '.join(places)}; "
        "resolve it there, run `git add` and `git am --continue` until it is through "
        f"(`git am --skip` drops a patch), then `python build.py refresh {project}`"
    )
