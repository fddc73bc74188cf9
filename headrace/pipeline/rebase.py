"""Say what a new upstream release means for each patch, and change nothing.

Three independent signals tell that a patch can be dropped: its reverse applies to the pristine
new tree; a three-way import of it leaves nothing; its regression test passes on the unpatched
new release. The third needs a built wheel: the caller brings it, and without it the report says
"not run" and how to run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.console import working
from headrace.errors import MachineError, SourceError
from headrace.pipeline.export import normalize, scratch_repository, write_commits
from headrace.pipeline.git import Git, git_version
from headrace.pipeline.judge import Judge, RegressionTest
from headrace.pipeline.layout import Layout
from headrace.pipeline.patchfile import PatchFile
from headrace.pipeline.pins import load_pins
from headrace.pipeline.problem import ProblemsError
from headrace.pipeline.resolve import resolve
from headrace.pipeline.series import read_series, require_tree
from headrace.pipeline.verdict import Verdict


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
    resolved = resolve(series.patches, old_tree)
    if resolved.problems:
        raise ProblemsError(resolved.problems)
    with scratch_repository() as git, working(f"judging {project} on {version}"):
        old, new = _snapshot(git, old_tree), _snapshot(git, new_tree)
        steps = [old, *(write_commits(git, resolved.commits, old) if resolved.commits else [])]
        reversed_ = _reverse_applies(git, new, series.patches)
        judge = Judge(git, new, new_tree, version, passes)
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
