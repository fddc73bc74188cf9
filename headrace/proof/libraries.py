"""One copy of each shared run-time library in the process, and none that the flavor excludes.

Two OpenMP run-times or two copies of torch in one process load without a word and then compute
with half of their state. A CUDA library in a CPU image says that another wheel came in.

Request: `{"import": [modules], "single": [stems], "absent": [file name patterns],
"absent_distributions": [name patterns], "roots": [folders]}`.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.metadata
import os
from collections.abc import Iterable, Iterator, Sequence

from headrace.proof.answer import Answer, Request
from headrace.proof.extensions import loaded_libraries


def prove(request: Request) -> Answer:
    """Import what an engine imports, then look at what is mapped and at what lies on disk."""
    answer = Answer()
    for module in request["import"]:
        importlib.import_module(module)
    mapped = loaded_libraries(request["single"])
    answer.facts["mapped"] = mapped
    for stem, paths in mapped.items():
        if len(paths) != 1:
            answer.problems.append(
                f"{stem}: expected one copy in the process, found {', '.join(paths) or 'none'}"
            )
    for path in files_named(request["absent"], request["roots"]):
        answer.problems.append(f"{path}: a library that this flavor excludes")
    for distribution in importlib.metadata.distributions():
        name = distribution.name
        if matches(name.lower(), request["absent_distributions"]):
            answer.problems.append(f"{name}: a distribution that this flavor excludes")
    return answer


def files_named(patterns: Sequence[str], roots: Iterable[str]) -> Iterator[str]:
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                if matches(name, patterns):
                    yield f"{folder}/{name}"


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
