"""The git work tree under build/edit/ in which a series stands as commits."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import SeriesError
from headrace.pipeline.git import Git
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pin

# The pristine release, and the commits as patches/ holds them.
BASE, WRITTEN = "refs/headrace/base", "refs/headrace/written"
_UNFINISHED = ("rebase-apply", "rebase-merge", "CHERRY_PICK_HEAD", "MERGE_HEAD", "REVERT_HEAD")


def edit_folder(layout: Layout, project: str) -> Path:
    """Return where the commits of a project's series are opened."""
    return layout.build / "edit" / project


def work_tree(folder: Path) -> Git:
    """Return git for the work tree at `folder`."""
    return Git(folder / ".git", folder)


def base_message(pin: Pin) -> str:
    """Return the message of the commit that holds the pristine release of `pin`."""
    return f"Pristine {pin.folder}\n\nUnpacked from {pin.file}\nsha256 {pin.sha256}\n"


def unfinished(git: Git) -> str:
    """Return what git is in the middle of (a name in .git), "" if nothing."""
    return next((name for name in _UNFINISHED if (git.git_dir / name).exists()), "")


def changes(git: Git) -> list[str]:
    """Return the paths that are changed or new and not committed."""
    said = git.run("status", "--porcelain", "--no-renames", "--untracked-files=all", "-z")
    return [os.fsdecode(entry[3:]) for entry in said.split(b"\0") if entry]


def ignored(git: Git) -> list[str]:
    """Return files and folders that upstream's .gitignore keeps out of every commit."""
    said = git.run("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    return [os.fsdecode(name) for name in said.split(b"\0") if name]


def conflicts(git: Git) -> list[str]:
    """Return "path:line" of every conflict in the work tree."""
    places = []
    for name in git.run("diff", "--name-only", "--diff-filter=U", "-z").split(b"\0"):
        path = os.fsdecode(name)
        file = (git.work_tree or Path()) / path
        lines = file.read_bytes().split(b"\n") if path and file.is_file() else []
        hits = [n for n, line in enumerate(lines, 1) if line.startswith(b"<<<<<<< ")]
        places += [f"{path}:{n}" for n in hits or [1] if path]
    return places


def refuse_to_lose_work(folder: Path, project: str) -> None:
    """Raise SeriesError if the work tree holds anything that patches/ does not."""
    git = work_tree(folder)
    written = git.attempt("rev-parse", "--verify", "--quiet", WRITTEN).stdout
    head = git.attempt("rev-parse", "--verify", "--quiet", "HEAD").stdout
    if written == head and not unfinished(git) and not changes(git):
        return
    raise SeriesError(
        f"{folder}: expected a work tree that was written back, found commits or changes that are "
        f"only there; run `python build.py refresh {project}`, or "
        f"`python build.py edit {project} --discard` to lose them"
    )


def require_ready(folder: Path, pin: Pin) -> Git:
    """Return git for a work tree that can be written back.

    Raises:
        SeriesError: it is missing, dirty, in the middle of a rebase, or on another release.
    """
    if not (folder / ".git").is_dir():
        raise SeriesError(
            f"{folder}: expected the series as commits, found no work tree; "
            f"run `python build.py edit {pin.id}`"
        )
    git = work_tree(folder)
    if name := unfinished(git):
        raise SeriesError(
            f"{folder}: expected a finished history, found {name} in .git; "
            "finish or abort it there (`git status` says how), then refresh again"
        )
    if names := changes(git):
        raise SeriesError(
            f"{folder}: expected everything committed, found changes in {', '.join(names[:5])}; "
            "run `git commit` or `git stash -u` there"
        )
    if git.text("log", "-1", "--format=%B", BASE) != base_message(pin).strip():
        raise SeriesError(
            f"{folder}: expected commits on {pin.folder}, which is pinned, found another base; "
            f"run `python build.py edit {pin.id} --discard`"
        )
    if git.attempt("merge-base", "--is-ancestor", BASE, "HEAD").returncode != 0:
        raise SeriesError(
            f"{folder}: expected commits on top of {BASE}, found a HEAD that is not; "
            f"run `git rebase {BASE}` there"
        )
    return git
