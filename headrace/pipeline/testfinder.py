"""Find a test function in a file without importing it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path


def missing_test(path: Path, names: Sequence[str]) -> str:
    """Return what is missing of a test function, "" if it is there; nothing is imported."""
    if not path.is_file():
        return "no such file"
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as broken:
        return f"a file that does not parse ({broken})"
    for number, name in enumerate(names, 1):
        kinds: tuple[type[ast.stmt], ...] = (ast.ClassDef,)
        if number == len(names):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        hit = next(
            (n for n in body if isinstance(n, kinds) and getattr(n, "name", "") == name), None
        )
        if hit is None:
            return f"no {'test function' if number == len(names) else 'class'} {name} in it"
        body = getattr(hit, "body", [])
    return ""
