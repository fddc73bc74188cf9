"""Every patched file is there byte for byte, and is the one that Python resolves and runs.

Request: `{"projects": [{"distribution": "lmcache", "files": {"lmcache/a.py": sha256 | null}}]}`,
paths relative to the folder that the distribution is installed in, null for a deleted file.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path, PurePosixPath

from headrace.proof.answer import Answer, Request, folder_of, sha256_of


def prove(request: Request) -> Answer:
    """Compare place, bytes and code of each file; find shadowed and shadowing copies."""
    answer = Answer()
    for project in request["projects"]:
        name = project["distribution"]
        if root := folder_of(name, answer):
            check_files(name, root, project["files"], answer)
    return answer


def check_files(name: str, root: Path, files: Mapping[str, str | None], answer: Answer) -> None:
    resolved = answer.facts.setdefault("resolved", {})
    for relative, expected in sorted(files.items()):
        module = module_name(relative)
        answer.problems += other_copies(root, relative)
        try:
            spec = find(module) if module else None
        except Exception as failure:  # noqa: BLE001 - a package may raise anything when imported
            answer.problems.append(f"{relative}: a package above it does not import: {failure}")
            continue
        if expected is None:
            if (root / relative).exists() or spec is not None:
                answer.problems.append(f"{relative}: deleted by a patch of {name}, still there")
            continue
        path = Path(spec.origin) if spec and spec.origin else root / relative
        if module and spec is None:
            answer.problems.append(f"{relative}: Python finds no module {module}")
        elif not path.is_file():
            answer.problems.append(f"{path}: expected a file of {name}, found none")
        elif path.resolve() != (root / relative).resolve():
            answer.problems.append(
                f"{relative}: Python resolves {path}, the file of {name} is {root / relative}"
            )
        elif (found := sha256_of(path)) != expected:
            answer.problems.append(f"{path}: expected sha256 {expected}, found {found}")
        elif spec is not None and not runs_its_source(spec, path):
            answer.problems.append(
                f"{path}: Python runs other code than the file says (stale byte code)"
            )
        resolved[relative] = str(path)


def module_name(relative: str) -> str | None:
    """Return the dotted name of a Python file, None for another file."""
    path = PurePosixPath(relative)
    if path.suffix != ".py":
        return None
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find(module: str) -> ModuleSpec | None:
    """Resolve `module` as an import would: its parents are imported, so their hooks count."""
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError as missing:
        if missing.name and f"{module}.".startswith(f"{missing.name}."):
            return None
        raise


def runs_its_source(spec: ModuleSpec, path: Path) -> bool:
    """Tell whether the code that an import would run is the code that the source compiles to."""
    if not isinstance(spec.loader, SourceFileLoader):
        return False
    source = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    return spec.loader.get_code(spec.name) == source


def other_copies(root: Path, relative: str) -> list[str]:
    """Name every further file of the same path on `sys.path`; one is one too many."""
    own = (root / relative).resolve()
    copies = {(Path(entry or ".") / relative).resolve() for entry in sys.path} - {own}
    return [f"{copy}: a second copy of {relative}" for copy in sorted(copies) if copy.is_file()]
