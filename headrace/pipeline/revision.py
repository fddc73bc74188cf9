"""Which commit this checkout is at, and when it was made: the version and the clock of an image."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.console import call
from headrace.errors import ConfigurationError
from headrace.pipeline.layout import Layout

# By which git hooks, and what they start, find another repository than that of the folder.
ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE")
ADVICE = "an image is labelled with its commit: build from a git clone"


@dataclass(frozen=True)
class Revision:
    """A commit.

    Attributes:
        name: its id, with "-dirty" if files of the checkout differ from it.
        epoch: when it was made, in seconds since 1970.
    """

    name: str
    epoch: int

    @property
    def dirty(self) -> bool:
        return self.name.endswith("-dirty")

    @property
    def created(self) -> str:
        """Its time as RFC 3339 in UTC."""
        return datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ask_this_checkout() -> None:
    """Drop what would have git tell of another repository's commit and files, in all that follows.

    It is for a whole process, since every stage that asks git means this checkout.
    """
    for name in ELSEWHERE:
        os.environ.pop(name, None)


def read_revision(layout: Layout) -> Revision:
    """Return the commit of the checkout.

    Raises:
        ConfigurationError: it is no git checkout, or has no commit.
    """
    shown = call(
        ["git", "-C", layout.root, "log", "-1", "--format=%H %ct"],
        error=ConfigurationError, advice=ADVICE,
    )  # fmt: skip
    commit, seconds = shown.split()
    status = call(["git", "-C", layout.root, "status", "--porcelain"], error=ConfigurationError)
    return Revision(commit + ("-dirty" if status.strip() else ""), int(seconds))
