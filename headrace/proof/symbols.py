"""Every symbol of every extension is in the image, as far as that shows without a driver.

An extension that needs the GPU's driver cannot be loaded where there is none; what loading it
would look for is followed file by file instead. Only the driver's own libraries may be missing.

Request: `{"distributions": [{"name": "vllm", "files": {"vllm/x.so": sha256}}],
"preload": ["torch"], "global": ["libtorch_global_deps"], "optional": {"x/plugin_*.so": reason}}`.
What is preloaded is mapped already when an engine loads extensions; of that, `global` names the
libraries whose symbols everybody sees. Optional are files that their package does without; at
least one of each pattern must really lack something, or the exception is out of date.
"""

from __future__ import annotations

import fnmatch
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.proof.answer import Answer, Request
from headrace.proof.extensions import foreign, installed, mapped_libraries, stem_of
from headrace.proof.linker import Loader, Scope


def prove(request: Request) -> Answer:
    """Resolve each extension's undefined symbols against what loading it would bring."""
    answer = Answer()
    for module in request.get("preload", ()):
        importlib.import_module(module)
    mapped = [Path(path) for path in mapped_libraries()]
    loader = Loader(mapped)
    everywhere = [loader.scope(Path(os.path.realpath(sys.executable)))]
    stems = set(request.get("global", ()))
    everywhere += [loader.scope(path) for path in mapped if stem_of(str(path)) in stems]
    optional: Mapping[str, str] = request.get("optional", {})
    facts = answer.facts
    facts.update(libraries=0, symbols=0, driver=0, foreign=0, optional={})
    for _, root, files in installed(request, answer):
        for relative in sorted(files):
            if foreign(relative):
                facts["foreign"] += 1
                continue
            problems = judge(root / relative, loader, everywhere, facts)
            patterns = [wanted for wanted in optional if fnmatch.fnmatchcase(relative, wanted)]
            if not patterns:
                answer.problems += problems
            elif problems:
                facts["optional"].setdefault(patterns[0], []).append(relative)
    answer.problems += [
        f"{pattern}: excepted ({reason}), but no such extension lacks anything"
        for pattern, reason in optional.items()
        if pattern not in facts["optional"]
    ]
    return answer


def judge(path: Path, loader: Loader, everywhere: list[Scope], facts: dict[str, int]) -> list[str]:
    """Return what keeps `path` from loading where there is a driver; count in `facts`."""
    try:
        scope = loader.scope(path)
    except (OSError, ValueError) as failure:
        return [str(failure)]
    facts["libraries"] += 1
    missing = []
    for symbol in sorted(scope.libraries[0].undefined):
        facts["symbols"] += 1
        if scope.defines(symbol) or any(other.defines(symbol) for other in everywhere):
            continue
        if scope.of_driver(symbol):
            facts["driver"] += 1
        else:
            missing.append(symbol)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        scope.problems.append(f"{path}: undefined symbol {missing[0]}{more}")
    return scope.problems
