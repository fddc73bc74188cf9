"""A site-packages folder whose FlashInfer has a record, and the ways in which it gets wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.engine.kernel_module import RECORD
from tests.kernel.loader_site import AOT as LIBRARY
from tests.kernel.loader_site import MODULE, SYMBOL, compiled
from tests.kernel.loader_site import SOURCE as KERNEL


def make_site(folder: Path, mode: str) -> Path:
    """Install one below `folder`; return its site-packages."""
    site = folder / "site"
    for path, text in (("flashinfer/__init__.py", "raise ImportError"), (KERNEL, "// patched\n")):
        place(site / path, text.encode())
    if mode == "aot":
        build_library(site, SYMBOL)
    record(site, mode)
    return site


def record(site: Path, mode: str, **changes: Any) -> None:
    """Record what lies in `site` now."""
    says: dict[str, Any] = {
        "module": MODULE, "mode": mode, "symbol": SYMBOL, "series_sha256": "5" * 64,
        "path": LIBRARY if mode == "aot" else None,
        "sha256": _sha256(site / LIBRARY) if mode == "aot" else None,
        "sources": {KERNEL: _sha256(site / KERNEL)},
    }  # fmt: skip
    place(site / RECORD, json.dumps(says | changes).encode())


def build_library(site: Path, symbol: str) -> None:
    """Put a shared library in place that defines `symbol`, and names one that it does not."""
    source = f"int elsewhere(void); int {symbol}(void) {{ return elsewhere(); }}"
    compiled(source, site / LIBRARY)


def place(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# Each makes one thing wrong in a site.
Fault = Callable[[Path], None]


def another_build(site: Path) -> None:
    build_library(site, "other")


def gone(site: Path) -> None:
    (site / LIBRARY).unlink()


def without_symbol(site: Path) -> None:
    another_build(site)
    record(site, "aot")


def symbol_of_another_library(site: Path) -> None:
    record(site, "aot", symbol="elsewhere")


def no_library(site: Path) -> None:
    place(site / LIBRARY, f"\0{SYMBOL}\0".encode())
    record(site, "aot")


def changed_source(site: Path) -> None:
    place(site / KERNEL, b"// stock\n")


def source_gone(site: Path) -> None:
    (site / KERNEL).unlink()


def stock_modules(site: Path) -> None:
    place(site / "flashinfer_jit_cache/__init__.py", b"")


def stock_in_place(site: Path) -> None:
    build_library(site, "other")


def broken_record(site: Path) -> None:
    place(site / RECORD, b"{")
