"""Write a series back from its commits, byte-stable, all files or none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace.console import disk_error, say
from headrace.errors import SeriesError
from headrace.pipeline.export import normalize, patch_bytes, scratch_repository, tidy_message
from headrace.pipeline.git import Git
from headrace.pipeline.layout import Layout
from headrace.pipeline.patchfile import file_name, message_problem, parse_patch
from headrace.pipeline.pins import Pin, load_pins
from headrace.pipeline.problem import Problem, ProblemsError
from headrace.pipeline.series import series_path, series_text
from headrace.pipeline.worktree import BASE, WRITTEN, edit_folder, ignored, require_ready


@dataclass(frozen=True)
class Refreshed:
    """What `refresh` did to the files of a series, by name."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]


def refresh(layout: Layout, project: str) -> Refreshed:
    """Write the commits of build/edit/PROJECT to patches/PROJECT.

    `Applies-To` is set to the pinned release, on which the commits stand.

    Raises:
        SeriesError: the work tree is dirty, in the middle of a rebase, or not on the pinned
            release; or a commit is a merge, is empty, or has a name that another one has.
        ProblemsError: a commit message lacks a header field. Nothing was written.
    """
    pin = load_pins(layout.pins).get(project)
    folder = edit_folder(layout, project)
    git = require_ready(folder, pin)
    target = series_path(layout, project).parent
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    with scratch_repository(objects=folder / ".git" / "objects") as scratch:
        parent = normalize(scratch, git.text("rev-parse", f"{BASE}^{{tree}}"), "base\n", None)
        for commit in git.text("rev-list", "--reverse", f"{BASE}..HEAD").split():
            who = git.text("log", "-1", "--format=%h '%s'", commit)
            message = _message(git, commit, who, pin)
            name = file_name(message.partition("\n")[0])
            if name in files:
                raise SeriesError(
                    f"{folder}: expected one commit for {name}, found a second one, {who}; "
                    "run `git rebase -i` there to reword or squash it"
                )
            tree = git.text("rev-parse", f"{commit}^{{tree}}")
            parent = normalize(scratch, tree, message, parent)
            files[name] = patch_bytes(scratch, parent)
            # What is read back later is checked now, while the message can still be amended.
            patch = parse_patch(target / name, layout.root, files[name])
            run = f"`git rebase -i {BASE}` in {folder}, 'reword'"
            problems += [
                Problem(f"commit {who}", p.line, p.expected, p.found, run) for p in patch.problems
            ]
    if problems:
        raise ProblemsError(problems)
    if names := ignored(git):
        say(f"{folder}: in no patch, as upstream's .gitignore says: {', '.join(names[:5])}")
    try:
        result = _replace(target, files)
    except OSError as failure:
        raise disk_error(failure, target) from failure
    git.run("update-ref", WRITTEN, "HEAD")
    return result


def _message(git: Git, commit: str, who: str, pin: Pin) -> str:
    folder = git.work_tree
    if len(git.text("log", "-1", "--format=%P", commit).split()) != 1:
        raise SeriesError(
            f"{folder}: expected one line of commits, found the merge {who}; "
            f"run `git rebase {BASE}` there"
        )
    now, before = git.text("rev-parse", f"{commit}^{{tree}}", f"{commit}^^{{tree}}").split()
    if now == before:
        raise SeriesError(
            f"{folder}: expected a change in every commit, found none in {who}; "
            f"run `git rebase -i {BASE}` there and drop it"
        )
    try:
        message = git.run("log", "-1", "--format=%B", commit).decode()
    except UnicodeDecodeError as wrong:
        raise SeriesError(
            f"{folder}: expected a message in UTF-8, found other bytes in {who}; "
            f"run `git rebase -i {BASE}` there, 'reword'"
        ) from wrong
    message = tidy_message(message, f"{pin.id} {pin.version}")
    if reason := message_problem(message):
        raise SeriesError(
            f"{folder}: expected a message of prose in {who}, found {reason}; "
            f"run `git rebase -i {BASE}` there, 'reword'"
        )
    return message


def _replace(folder: Path, files: dict[str, bytes]) -> Refreshed:
    """Write `files` and the series that lists them; remove every other patch file."""
    wanted = {**files, "series": series_text(list(files)).encode()}
    folder.mkdir(parents=True, exist_ok=True)
    written = [name for name, data in wanted.items() if _content(folder / name) != data]
    partial = {name: folder / f".{name}.{os.getpid()}.new" for name in written}
    try:
        # A full disk shows here, before the first file is replaced.
        for name, path in partial.items():
            path.write_bytes(wanted[name])
        for name, path in partial.items():
            path.replace(folder / name)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)
    gone = sorted(path.name for path in folder.glob("*.patch") if path.name not in files)
    for name in gone:
        (folder / name).unlink()
    return Refreshed(tuple(written), tuple(gone), tuple(n for n in wanted if n not in written))


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
