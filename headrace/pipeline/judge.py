"""Judge patches one after another on a new upstream tree, which grows by those that apply."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

from headrace.errors import MachineError, SeriesError
from headrace.pipeline.diff import LineError, split_lines
from headrace.pipeline.exact import apply_change, locate
from headrace.pipeline.export import normalize
from headrace.pipeline.git import Git
from headrace.pipeline.patchfile import PatchFile
from headrace.pipeline.tree import Blob, Tree
from headrace.pipeline.verdict import Outcome, Verdict

RegressionTest = Callable[[PatchFile], bool]


class Judge:
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
        """Judge the next patch, which leads from commit `before` to `after` on the old release."""
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
        command = f"`python build.py rebase {patch.project} --to {self.version} --run-tests`"
        return Verdict(
            patch.name, outcome, reverse, nothing, passed, command,
            tuple(merged_hunks) if outcome == "partly merged" else (),
            tuple(places) if outcome != "merged upstream" else (),
            "; ".join(notes),
        )  # fmt: skip

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
