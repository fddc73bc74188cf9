"""Installed distributions agree with each other, except where an exclusion says why not.

Request: `{"excluded": {"torchvision": "reason"}}`. An excluded distribution may be asked for and
must not be there.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from headrace.proof.answer import Answer, Request


def prove(request: Request) -> Answer:
    """Check every requirement of every distribution against what is installed."""
    answer = Answer()
    excluded: Mapping[str, str] = {
        canonicalize_name(name): reason for name, reason in request["excluded"].items()
    }
    found = list(importlib.metadata.distributions())
    names = Counter(canonicalize_name(distribution.name) for distribution in found)
    versions: dict[str, str] = {canonicalize_name(d.name): d.version for d in found}
    answer.facts["distributions"] = len(names)
    for name, count in sorted(names.items()):
        if count > 1:
            answer.problems.append(f"{name}: installed {count} times")
        if name in excluded:
            answer.problems.append(f"{name}: installed, but excluded: {excluded[name]}")
    for distribution in sorted(found, key=lambda d: d.name.lower()):
        for text in distribution.requires or ():
            check(distribution.name, text, versions, excluded, answer)
    return answer


def check(
    name: str,
    text: str,
    versions: Mapping[str, str],
    excluded: Mapping[str, str],
    answer: Answer,
) -> None:
    """Add a problem if `name` asks for `text` and does not get it."""
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        answer.problems.append(f"{name}: asks for {text!r}, which is no requirement")
        return
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return
    other = canonicalize_name(wanted.name)
    version = versions.get(other)
    if version is None and other in excluded:
        waived = answer.facts.setdefault("waived", {})
        waived[f"{name} -> {other}"] = excluded[other]
    elif version is None:
        answer.problems.append(f"{name}: asks for {wanted}, which is not installed")
    elif not wanted.specifier.contains(version, prereleases=True):
        answer.problems.append(f"{name}: asks for {wanted}, found {version}")
