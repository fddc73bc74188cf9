"""Run git so that no setting of the user or the machine changes a byte."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import HeadraceError, MachineError, SeriesError

NAME = "headrace maintainers"
EMAIL = "maintainers@headrace.invalid"
# 2026-01-01 00:00:00 UTC: commits of a series carry no date of their own.
EPOCH = 1767225600

# Upstream's own .gitattributes must neither convert content nor choose another diff; some
# releases of git read them in a bare repository, too.
ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding !diff !merge\n"

SETTINGS = {
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.excludesFile": os.devnull,
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "true",
    "core.safecrlf": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "log.showSignature": "false",
    # Nothing here is found by discovery, and an unpacked sdist may belong to any user.
    "safe.directory": "*",
}


class Git:
    """One repository, its work tree (if any) and its index, always named and never found.

    Raises:
        MachineError: git is not installed.
    """

    def __init__(
        self, git_dir: Path, work_tree: Path | None = None, index: Path | None = None
    ) -> None:
        # git runs inside the tree, where a relative path would mean another place.
        self.git_dir = git_dir.absolute()
        self.work_tree = work_tree.absolute() if work_tree else None
        self.index = index.absolute() if index else None

    @classmethod
    def create(cls, git_dir: Path, work_tree: Path | None = None) -> Git:
        """Make an empty repository whose attributes override those of any tree in it."""
        git = cls(git_dir, work_tree)
        git_dir.mkdir(parents=True)
        # `--template=` keeps sample hooks and an installed info/exclude out.
        bare = ["--bare"] if work_tree is None else []
        git.run("init", "--quiet", "--template=", "--initial-branch=series", *bare)
        (git_dir / "info").mkdir()
        (git_dir / "info" / "attributes").write_text(ATTRIBUTES)
        return git

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        error: type[HeadraceError] = SeriesError,
    ) -> bytes:
        """Return the standard output of `git ARGUMENTS`; raise `error` if it fails."""
        done = self.attempt(*arguments, stdin=stdin, env=env)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise error(
                f"git {arguments[0]} in {self.work_tree or self.git_dir}: expected success, found "
                f"status {done.returncode}: {said[-1] if said else 'no message'}"
            )
        return done.stdout

    def text(self, *arguments: str) -> str:
        """Return the output of `git ARGUMENTS` as one stripped text."""
        return os.fsdecode(self.run(*arguments)).strip()

    def attempt(
        self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `git ARGUMENTS` and return what came of it, whatever its exit status."""
        places = [f"--git-dir={self.git_dir}"]
        if self.work_tree is not None:
            places.append(f"--work-tree={self.work_tree}")
        full_env = {**clean_environment(), **(env or {})}
        if self.index is not None:
            full_env["GIT_INDEX_FILE"] = str(self.index)
        settings = [word for key, value in SETTINGS.items() for word in ("-c", f"{key}={value}")]
        command = ["git", *places, *settings, *arguments]
        where = self.work_tree or self.git_dir
        try:
            return subprocess.run(
                command, input=stdin, env=full_env, cwd=where, capture_output=True, check=False
            )
        except FileNotFoundError as missing:
            raise MachineError(
                "couldn't find 'git' in PATH; install it (on Debian: apt-get install git)"
            ) from missing


def clean_environment() -> dict[str, str]:
    """Return the environment without anything that git, its pager or its editor would read."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    for key in ("XDG_CONFIG_HOME", "EMAIL", "PAGER", "EDITOR", "VISUAL", "LANGUAGE"):
        kept.pop(key, None)
    date = f"{EPOCH} +0000"
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "true",
        "GIT_PAGER": "cat",
        "GIT_AUTHOR_NAME": NAME,
        "GIT_AUTHOR_EMAIL": EMAIL,
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_NAME": NAME,
        "GIT_COMMITTER_EMAIL": EMAIL,
        "GIT_COMMITTER_DATE": date,
        "LC_ALL": "C",
        "TZ": "UTC",
    }


@functools.cache
def git_version() -> tuple[int, ...]:
    """Return git's version, e.g. (2, 39)."""
    said = Git(Path("/")).run("version").decode()
    found = re.search(r"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)
