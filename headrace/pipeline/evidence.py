"""What was proved about one image: its checks, its suites, and which of them must be there.

A report is a record, not a signature: it carries a hash over its own content, which shows a file
that was cut off or edited by hand, and which anybody who means to deceive can recompute.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

SCHEMA = 1
Verdict = Literal["green", "red", "void"]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]

CPU_CHECKS = (
    "digest",
    "labels",
    "account",
    "no-compiler",
    "no-build-remains",
    "no-secrets",
    "packaged-files",
    "patched-files",
    "extensions",
    "libraries",
    "metadata",
    "starts-offline",
)
# What a report must hold to be publishable. A part that was left out proves nothing.
MANDATORY_CHECKS: dict[str, tuple[str, ...]] = {
    "cpu": CPU_CHECKS,
    "sm103": (*CPU_CHECKS, "device-code", "kernel-module", "symbols", "offline-imports"),
}
MANDATORY_SUITES: dict[str, tuple[str, ...]] = {
    "cpu": ("missing-key", "needle"),
    "sm103": ("missing-key", "needle"),
}


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Check(Record):
    """One proof. `detail` is one line that says what was found."""

    name: str = Field(min_length=1)
    verdict: Verdict
    detail: str
    seconds: float = Field(ge=0)


class Case(Record):
    """One case of a suite, as the suite wrote it."""

    case: str = Field(min_length=1)
    expected: str
    seen: str
    verdict: Verdict
    ms: float = Field(ge=0)


class Suite(Record):
    """One suite that ran in the image."""

    name: str = Field(min_length=1)
    verdict: Verdict
    detail: str
    seconds: float = Field(ge=0)
    cases: tuple[Case, ...]


class Report(Record):
    """What `build/report/<digest>.json` holds.

    Attributes:
        image: the digest of the image's manifest, which is what a registry is asked for.
        content_sha256: over all other fields as canonical JSON.
    """

    schema_: Literal[1] = Field(alias="schema", default=1)
    image: Digest
    flavor: str
    version: str
    revision: str
    series_sha256: str
    started: str
    seconds: float = Field(ge=0)
    verdict: Verdict
    checks: tuple[Check, ...]
    suites: tuple[Suite, ...]
    content_sha256: str = ""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def hash_of_content(self) -> str:
        content = {key: value for key, value in self.as_json().items() if key != "content_sha256"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def sealed(self) -> Report:
        """Return the same report with `content_sha256` filled in."""
        return self.model_copy(update={"content_sha256": self.hash_of_content()})


def overall(flavor: str, checks: tuple[Check, ...], suites: tuple[Suite, ...]) -> Verdict:
    """Return red if anything is red, else void if anything is void or missing, else green."""
    verdicts = [check.verdict for check in checks] + [suite.verdict for suite in suites]
    verdicts += [case.verdict for suite in suites for case in suite.cases]
    if "red" in verdicts:
        return "red"
    if "void" in verdicts or missing_parts(flavor, checks, suites):
        return "void"
    return "green"


def missing_parts(flavor: str, checks: tuple[Check, ...], suites: tuple[Suite, ...]) -> list[str]:
    """Return the mandatory parts that are not there, or are there without a case."""
    present = {check.name for check in checks}
    ran = {suite.name for suite in suites if suite.cases}
    return [
        *(f"check {name}" for name in MANDATORY_CHECKS[flavor] if name not in present),
        *(f"suite {name}" for name in MANDATORY_SUITES[flavor] if name not in ran),
    ]
