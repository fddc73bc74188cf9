"""The answer that every proof gives."""

from __future__ import annotations

import hashlib
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
