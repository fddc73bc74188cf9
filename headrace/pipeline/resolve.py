"""Apply a series in memory: every patch exactly, on the tree that the earlier ones left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.pipeline.diff import LineError
from headrace.pipeline.exact import apply_change, check_ids
from headrace.pipeline.export import Commit
from headrace.pipeline.patchfile import PatchFile
from headrace.pipeline.problem import Problem
from headrace.pipeline.tree import Blob, Tree


@dataclass
class Resolved:
    """What a series makes of a tree.

    Attributes:
        tree: the tree after the patches that apply.
        commits: one for each patch of the series up to the first that does not apply exactly.
        problems: where a patch does not apply exactly.
    """

    tree: Tree
    commits: list[Commit] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def resolve(patches: Sequence[PatchFile], root: Path, *, ids: bool = True) -> Resolved:
    """Apply `patches` to the tree at `root` in memory, with no fuzz and no offset.

    With `ids`, the blob ids in the diffs must be those of the content, too. What comes after a
    patch that cannot be read, and after a failure on the same file, is left out: one fault is
    told once.
    """
    resolved = Resolved(Tree(root))
    failed: set[str | None] = set()
    for patch in patches:
        before = len(resolved.problems)
        files: dict[str, Blob | None] = {}
        for change in patch.changes:
            names = {change.old_path, change.new_path} - {None}
            if names & failed:
                failed |= names
                continue
            try:
                made = apply_change(resolved.tree, change)
                if ids:
                    old = resolved.tree.get(change.old_path) if change.old_path else None
                    check_ids(change, old, made[change.path])
                files |= made
            except LineError as failure:
                failed |= names
                resolved.problems.append(patch.problem(failure))
        resolved.tree.changed |= files
        if not failed and len(resolved.problems) == before:
            resolved.commits.append(Commit(patch.message, files))
    return resolved
