"""The answer that every proof gives."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Request = Mapping[str, Any]


@dataclass
class Answer:
    """What a proof found.

    Attributes:
        problems: one line each; none means that the proof holds.
        facts: what was looked at, as JSON, so that a report can say how much was proved.
    """

    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_of(name: str, answer: Answer) -> Path | None:
    """Return the folder that a distribution is installed in; None, and a problem, without one."""
    try:
        return Path(str(importlib.metadata.distribution(name).locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        answer.problems.append(f"{name}: expected an installed distribution, found none")
        return None
