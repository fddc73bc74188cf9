"""LMCache's vLLM connector where there is no vLLM: enough of it to import the connector's module.

Every name of every `vllm` module is an empty class. What a test calls must not touch them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any


class _Modules(MetaPathFinder, Loader):
    """Finds any module below `vllm`, and makes it up."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "vllm":
            return None
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        def made_up(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__path__ = []
        vars(module)["__version__"] = "0.31.0"
        vars(module)["__getattr__"] = made_up


def worker_connector(engine: Any) -> Any:
    """Return LMCache's in-process connector as a worker has it, around `engine`."""
    adapter = _adapter()
    connector = adapter.LMCacheConnectorV1Impl.__new__(adapter.LMCacheConnectorV1Impl)
    connector._manager = SimpleNamespace(lmcache_engine=engine)
    return connector


@functools.cache
def _adapter() -> Any:
    finder = None
    if importlib.util.find_spec("vllm") is None:
        finder = _Modules()
        sys.meta_path.append(finder)
    try:
        return importlib.import_module("lmcache.integration.vllm.vllm_v1_adapter")
    finally:
        # An engine built later must not find it: it would take vLLM's hash functions from it.
        if finder is not None:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
                del sys.modules[name]
