"""Importing LMCache's vLLM integration where vLLM is not installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _StandIn(ModuleType):
    """A module that has every class one asks it for; none of them does anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args, **options: None})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.split(".")[0] != "vllm":
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in is complete as it was made."""


@contextlib.contextmanager
def stand_in_for_vllm() -> Iterator[None]:
    """Let `import vllm…` give stand-ins, and forget them afterwards: LMCache looks for hash
    functions there.
    """
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
            del sys.modules[name]
