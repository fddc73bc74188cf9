"""Before an engine starts: is what FlashInfer would load what the build recorded?

FlashInfer's own check, of the process that loads the module, is the patch "Load the module that
the build recorded or none". This one needs no GPU and takes a fraction of a second, so an image
that was changed is refused before a model is read. No module of FlashInfer is imported for it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from headrace.engine.kernel_module import RECORD, ModuleRecord, read_record
from headrace.errors import KernelModuleError
from headrace.proof.elf import read_library

# The package of precompiled modules, which the release prefers to its sources.
STOCK_MODULES = "flashinfer_jit_cache"


def require_recorded_module(site: Path) -> ModuleRecord:
    """Return the record of the FlashInfer in `site`, a site-packages folder, if all of it holds.

    The FlashInfer that Python would import must be the one there, each patched file the recorded
    one, and so must the module in mode "aot". In mode "jit" no precompiled module may be around.

    Raises:
        KernelModuleError: something is not as recorded, or the record is none.
    """
    record = read_record(site)
    package = site / "flashinfer"
    if (imported := _package("flashinfer")) != os.path.realpath(package):
        raise _refusal(package, "Python to import this FlashInfer", imported or "none")
    for path, sha256 in record.sources.items():
        _require_content(site / path, sha256)
    if record.path is not None and record.sha256 is not None:
        library = site / record.path
        _require_content(library, record.sha256)
        _require_symbol(library, record.symbol)
        return record
    placed = package / "data" / "aot" / record.module
    if placed.exists():
        raise _refusal(placed, f"no precompiled {record.module} in mode jit", "one")
    if stock := _package(STOCK_MODULES):
        raise _refusal(stock, f"no {STOCK_MODULES} in mode jit", "it")
    return record


def report_module(site: Path, mode: str) -> None:
    """Check, and say on stderr in one line which module it is.

    Args:
        mode: what the image says that the record's is, "" if it says nothing.

    Raises:
        KernelModuleError: as `require_recorded_module`, or the record is of another mode.
    """
    record = require_recorded_module(site)
    if mode not in ("", record.mode):
        raise _refusal(site / RECORD, f"mode {mode}, the image's", record.mode)
    if record.path is None:
        what = f"to be compiled at the first start, from sources of series {record.series_sha256}"
    else:
        what = f"{site / record.path}, sha256 {record.sha256}, exports {record.symbol}"
    says = f"headrace: {record.module} as recorded, mode {record.mode}: {what}"
    print(says, file=sys.stderr, flush=True)


def _package(name: str) -> str | None:
    """Return the folder or file that Python would import `name` from, links resolved."""
    found = importlib.util.find_spec(name)
    if found is None:
        return None
    if found.submodule_search_locations:
        return os.path.realpath(next(iter(found.submodule_search_locations)))
    return found.origin


def _require_content(file: Path, sha256: str) -> None:
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as failure:
        raise _refusal(file, "the recorded file", failure.strerror or "none") from failure
    if found != sha256:
        raise _refusal(file, f"sha256 {sha256}", found)


def _require_symbol(library: Path, symbol: str) -> None:
    try:
        exported = read_library(library).defined
    except (OSError, ValueError) as failure:
        raise _refusal(library, "a shared library", str(failure)) from failure
    if symbol not in exported:
        raise _refusal(library, f"the symbol {symbol}", "none")


def _refusal(where: Path | str, expected: str, found: str) -> KernelModuleError:
    return KernelModuleError(
        f"{where}: expected {expected}, found {found}; start the image as it was published"
    )
