"""Say what a new upstream release means for each patch, and change nothing.

Three independent signals tell that a patch can be dropped: its reverse applies to the pristine
new tree; a three-way import of it leaves nothing; its regression test passes on the unpatched
new release. The third needs a built wheel: the caller brings it, and without it the report says
"not run" and how to run it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.console import working
from headrace.errors import MachineError, SeriesError, SourceError
from headrace.pipeline.diff import LineError, split_lines
from headrace.pipeline.exact import apply_change, locate
from headrace.pipeline.export import normalize, scratch_repository, write_commits
from headrace.pipeline.git import Git, git_version
from headrace.pipeline.layout import Layout
from headrace.pipeline.patchfile import PatchFile
from headrace.pipeline.pins import load_pins
from headrace.pipeline.problem import ProblemsError
from headrace.pipeline.series import read_series, require_tree, resolve
from headrace.pipeline.tree import Blob, Tree

Outcome = Literal["applies", "merged upstream", "partly merged", "conflicts"]
RegressionTest = Callable[[PatchFile], bool]


@dataclass(frozen=True)
class Verdict:
    """What the new release means for one patch.

    Attributes:
        outcome: "merged upstream" needs one of the first two signals; a regression test that
            passes is no more than a reason to look, and is told in `note`.
        reverse_applies: signal 1.
        three_way_leaves_nothing: signal 2.
        regression_passes: signal 3 on the unpatched new release; None if it was not run.
        regression_command: how to run it.
        merged_hunks: "patch file:line (upstream file)" of hunks that the new tree has already.
        conflicts: "upstream file:line" in the new tree with the earlier patches applied.
        note: one line for a person, "" if the rest says it all.
    """

    patch: str
    outcome: Outcome
    reverse_applies: bool
    three_way_leaves_nothing: bool
    regression_passes: bool | None
    regression_command: str
    merged_hunks: tuple[str, ...]
    conflicts: tuple[str, ...]
    note: str

    def __str__(self) -> str:
        test = {True: "passes", False: "fails", None: f"not run ({self.regression_command})"}
        parts = [
            f"{self.patch}: {self.outcome}",
            f"reverse applies: {'yes' if self.reverse_applies else 'no'}",
            f"three-way leaves nothing: {'yes' if self.three_way_leaves_nothing else 'no'}",
            f"regression test without it: {test[self.regression_passes]}",
        ]
        if self.merged_hunks:
            parts.append(f"merged hunks: {', '.join(self.merged_hunks)}")
        if self.conflicts:
            parts.append(f"conflicts: {', '.join(self.conflicts)}")
        return "; ".join([*parts, self.note] if self.note else parts)


def rebase(
    layout: Layout,
    project: str,
    version: str,
    new_tree: Path,
    passes: RegressionTest | None = None,
) -> list[Verdict]:
    """Judge each patch of `project` on the pristine `new_tree` of `version`, in order.

    A later patch is judged on the tree with the earlier ones applied, those that can be.

    Args:
        passes: runs a patch's regression tests on the unpatched new release.

    Raises:
        ProblemsError: the series does not apply to the release that is pinned.
        SourceError: one of the trees is missing.
        MachineError: git is older than 2.38.
    """
    if git_version() < (2, 38):
        raise MachineError(
            f"git: expected 2.38 or newer for three-way merges without a work tree, found "
            f"{'.'.join(map(str, git_version()))}; install a newer one"
        )
    pin = load_pins(layout.pins).get(project)
    old_tree = require_tree(layout, pin)
    if not new_tree.is_dir():
        raise SourceError(f"{new_tree}: expected the unpacked {project} {version}, found no folder")
    series = read_series(layout, project)
    resolved = resolve(series, old_tree)
    if resolved.problems:
        raise ProblemsError(resolved.problems)
    with scratch_repository() as git, working(f"judging {project} on {version}"):
        old, new = _snapshot(git, old_tree), _snapshot(git, new_tree)
        steps = [old, *(write_commits(git, resolved.commits, old) if resolved.commits else [])]
        reversed_ = _reverse_applies(git, new, series.patches)
        judge = _Judge(git, new, new_tree, version, passes)
        return [
            judge.verdict(patch, steps[i], steps[i + 1], reversed_[i])
            for i, patch in enumerate(series.patches)
        ]


def _snapshot(git: Git, tree: Path) -> str:
    """Return a commit of all files of `tree`, which is only read."""
    index = Git(git.git_dir, tree, git.git_dir / "headrace-index")
    index.run("read-tree", "--empty")
    index.run("add", "--all", "--force", ".")
    return normalize(git, index.text("write-tree"), "snapshot\n", None)


def _reverse_applies(git: Git, new: str, patches: Sequence[PatchFile]) -> list[bool]:
    # From the last to the first: of two merged patches on the same lines, only the later one
    # comes off the pristine tree, and the earlier one once that is off.
    index = Git(git.git_dir, git.git_dir, git.git_dir / "headrace-index")
    index.run("read-tree", new)
    found = [
        index.attempt("apply", "--cached", "--reverse", "-", stdin=patch.data).returncode == 0
        for patch in reversed(patches)
    ]
    return found[::-1]


class _Judge:
    """The new tree as it grows by the patches that can be applied."""

    def __init__(
        self, git: Git, new: str, new_tree: Path, version: str, passes: RegressionTest | None
    ) -> None:
        self.git = git
        self.tip = new
        self.tree = Tree(new_tree)
        self.version = version
        self.passes = passes
        self.left_out: list[str] = []

    def verdict(self, patch: PatchFile, before: str, after: str, reverse: bool) -> Verdict:
        exact = self._applies_exactly(patch)
        merged_hunks = self._merged_hunks(patch)
        merged, clean = self._merge(before, after)
        files = self._differences(merged)
        places = [] if clean else self._conflicts(files)
        nothing = clean and not files
        notes = []
        outcome: Outcome = "applies"
        if reverse or nothing:
            outcome = "merged upstream"
        elif merged_hunks:
            outcome = "partly merged"
        elif not clean:
            outcome = "conflicts"
        elif not exact:
            notes.append("lines moved: edit and refresh will rewrite them")
        if self.left_out and outcome != "merged upstream":
            notes.append(f"judged without {', '.join(self.left_out)}")
        if clean:
            self._advance(merged, files)
        elif not reverse:
            self.left_out.append(patch.name)
        passed = self.passes(patch) if self.passes else None
        if passed and outcome != "merged upstream":
            notes.append("its regression test passes without it: upstream may have another fix")
        if passed is False and outcome == "merged upstream":
            notes.append("but its regression test fails without it: look before you drop it")
        return Verdict(
            patch.name, outcome, reverse, nothing, passed, self._command(patch),
            tuple(merged_hunks) if outcome == "partly merged" else (),
            tuple(places) if outcome != "merged upstream" else (),
            "; ".join(notes),
        )  # fmt: skip

    def _command(self, patch: PatchFile) -> str:
        tests = " ".join(patch.regression_tests)
        return f"python -m pytest {tests}, with {patch.project} {self.version} unpatched"

    def _applies_exactly(self, patch: PatchFile) -> bool:
        try:
            for change in patch.changes:
                apply_change(self.tree, change)
        except LineError:
            return False
        return True

    def _merged_hunks(self, patch: PatchFile) -> list[str]:
        found = []
        for change in patch.changes:
            blob = self._blob(change.path)
            lines = split_lines(blob.data) if blob else []
            for hunk in change.hunks if blob else []:
                if change.old_path is None:
                    here = lines == hunk.new
                else:
                    here = locate(lines, hunk.new) is not None and locate(lines, hunk.old) is None
                if here:
                    found.append(f"{patch.where}:{hunk.line} ({change.path})")
        return found

    def _merge(self, before: str, after: str) -> tuple[str, bool]:
        """Return the tree of tip + (after - before), and whether there was no conflict."""
        git = self.git
        ours = normalize(git, f"{self.tip}^{{tree}}", "ours\n", before)
        theirs = normalize(git, f"{after}^{{tree}}", "theirs\n", before)
        done = git.attempt("merge-tree", "--write-tree", "-z", "--name-only", ours, theirs)
        if done.returncode not in (0, 1):
            said = done.stderr.decode(errors="replace").strip()
            raise MachineError(f"git merge-tree: expected a merge, found: {said}")
        tree, *names = done.stdout.split(b"\0\0")[0].split(b"\0")
        self.conflicted = [os.fsdecode(name) for name in names if name]
        return tree.decode(), done.returncode == 0

    def _differences(self, tree: str) -> dict[str, Blob | None]:
        raw = self.git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", self.tip, tree)
        words = raw.split(b"\0")[:-1]
        files: dict[str, Blob | None] = {}
        for head, path in zip(words[::2], words[1::2], strict=True):
            mode, blob = head.split()[1].decode(), head.split()[3].decode()
            data = self.git.run("cat-file", "blob", blob) if mode != "000000" else None
            files[os.fsdecode(path)] = None if data is None else Blob(mode, data)
        return files

    def _conflicts(self, files: dict[str, Blob | None]) -> list[str]:
        places = []
        for path in self.conflicted:
            blob = files.get(path)
            ours = self._blob(path)
            marks = _conflict_lines(ours.data, blob.data) if ours and blob else []
            places += [f"{path}:{line}" for line in marks or [1]]
        return places

    def _blob(self, path: str) -> Blob | None:
        try:
            return self.tree.get(path)
        except SeriesError:
            # Upstream made a folder or a link of it: nothing to compare.
            return None

    def _advance(self, tree: str, files: dict[str, Blob | None]) -> None:
        self.tip = normalize(self.git, tree, "tip\n", self.tip)
        self.tree.changed |= files


def _conflict_lines(ours: bytes, merged: bytes) -> list[int]:
    """Return the lines (from 1) of `ours` at which `merged` has a conflict marker."""
    have, got = split_lines(ours), split_lines(merged)
    matcher = difflib.SequenceMatcher(None, have, got, autojunk=False)
    return [
        old + 1
        for tag, old, _, new, new_end in matcher.get_opcodes()
        if tag != "equal" and any(line.startswith(b"<<<<<<< ") for line in got[new:new_end])
    ]
