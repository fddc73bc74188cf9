"""Importing LMCache's vLLM integration where vLLM is not installed."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

VERSION = "0.31.0"


class _MadeUp(ModuleType):
    """A module that has every class one asks it for; none of them does anything."""

    __version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args, **options: None})
        # Asked again it is the same one, and a test may replace it.
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds any module below `vllm`, and makes it up."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if _is_vllm(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _MadeUp(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A made up module is complete as it was created."""


@contextlib.contextmanager
def made_up_vllm() -> Iterator[None]:
    """Let `import vllm…` give made up modules, and forget them afterwards.

    An engine that is built later must not find them: it would take vLLM's hash functions there.
    """
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_vllm(name)]:
            del sys.modules[name]


def worker_connector(engine: Any) -> Any:
    """Return LMCache's in-process connector as a worker has it, around `engine`."""
    with made_up_vllm():
        adapter: Any = importlib.import_module("lmcache.integration.vllm.vllm_v1_adapter")
    connector = adapter.LMCacheConnectorV1Impl.__new__(adapter.LMCacheConnectorV1Impl)
    connector._manager = SimpleNamespace(lmcache_engine=engine)
    return connector


def _is_vllm(name: str) -> bool:
    return name.partition(".")[0] == "vllm"
