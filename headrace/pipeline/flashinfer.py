"""FlashInfer's wheel with patched sources, and how its fused-MoE module gets into an image.

FlashInfer loads a precompiled module by its name and never compares it with the sources. So there
are two modes, and the wheel says which one it is in, in headrace-module.json:

jit  patched sources and no precompiled module anywhere: the first start compiles the patched one
aot  that module compiled here, where FlashInfer looks first; needs the headers of flashinfer-cubin
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any, Literal, cast, get_args

from headrace.engine.kernel_module import RECORD
from headrace.errors import ConfigurationError, WheelError
from headrace.pipeline import aot, repack, wheels
from headrace.pipeline.cuda import Toolkit
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest, hash_file, hash_tree
from headrace.pipeline.pins import Pin, Pins
from headrace.pipeline.records import patch_record

Mode = Literal["jit", "aot"]
# The symbol that the series exports and the release lacks.
SYMBOL = "__tvm_ffi_trtllm_moe_activation_patch_id"
# The package of the stock modules, which FlashInfer prefers to its own sources.
STOCK_MODULES = "flashinfer-jit-cache"


def require_mode(pins: Pins, mode: str) -> None:
    """Raise ConfigurationError unless there is such a mode and nothing would be loaded in front.

    What is loaded in front of patched sources is a pin of the stock modules.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(
            f"--module: expected one of {', '.join(get_args(Mode))}, found '{mode}'"
        )
    if any(pin.name == STOCK_MODULES for pin in pins.of_flavor("sm103")):
        raise ConfigurationError(
            f"{pins.path}: expected no {STOCK_MODULES} in flavor sm103, found a pin: FlashInfer "
            "would load the stock module in front of the patched sources; remove it"
        )


def flashinfer_wheel(layout: Layout, pins: Pins, toolkit: Toolkit, mode: Mode) -> Path:
    """Pack the patched FlashInfer under its own version; return the wheel.

    Raises:
        SourceError: mode "aot", and the headers that it compiles with cannot be had.
        WheelError: the tree holds anything that is compiled, or the compile failed.
    """
    pin = pins.get("flashinfer")
    tree = wheels.patch_project(layout, pin)
    require_sources_alone(tree)
    wheel = layout.wheels("sm103") / pin.file
    module = aot.build_module(layout, pins, tree, toolkit) if mode == "aot" else None
    says = describe(layout, pin, module)
    inputs = {
        "tree": hash_tree(tree),
        "record": json.dumps(says, sort_keys=True),
        "stage": hash_file(Path(__file__)) + hash_file(Path(repack.__file__)),
    }

    def pack() -> None:
        added = {RECORD: (json.dumps(says, indent=1) + "\n").encode()}
        if module:
            added[aot.PLACE] = module.read_bytes()
        repack.repack(tree, wheel, added)

    Manifest(layout).run("wheel sm103 flashinfer", inputs, [wheel], pack)
    return wheel


def describe(layout: Layout, pin: Pin, module: Path | None) -> dict[str, Any]:
    """Return what headrace-module.json says of a wheel with that module, or with sources alone.

    `sources` are the files that the series touches, `path` and `sha256` those of the module.
    """
    patched = patch_record(layout, pin)
    return {
        "module": aot.MODULE,
        "mode": "aot" if module else "jit",
        "path": aot.PLACE if module else None,
        "sha256": hash_file(module) if module else None,
        "symbol": SYMBOL,
        "series_sha256": patched.series_sha256,
        "sources": {path: sha256 for path, sha256 in patched.files.items() if sha256},
    }


def read_mode(wheel: Path) -> Mode:
    """Return in which mode a wheel of FlashInfer was packed.

    Raises:
        WheelError: it is no wheel of ours; the stock one says nothing.
    """
    advice = "run `python build.py wheels --flavor sm103`"
    try:
        with zipfile.ZipFile(wheel) as packed:
            mode = json.loads(packed.read(RECORD))["mode"]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError, RecursionError) as broken:
        raise WheelError(f"{wheel}: expected {RECORD} in it, found {broken}; {advice}") from broken
    for known in get_args(Mode):
        if mode == known:
            return cast(Mode, known)
    raise WheelError(
        f"{wheel}: {RECORD}: expected mode {' or '.join(get_args(Mode))}, found {mode!r}; {advice}"
    )


def require_sources_alone(tree: Path) -> None:
    """Raise WheelError if an unpacked FlashInfer brings anything that is compiled.

    That is a module of other sources, or an expert parallelism that is made for another NIXL.
    """
    names = (path.relative_to(tree).as_posix() for path in tree.rglob("*.so*") if path.is_file())
    # Not every name with ".so" in it is a library: algorithm.sort_heap.h
    if found := sorted(name for name in names if re.search(r"\.so(\.\d+)*$", name)):
        raise WheelError(f"{tree}: expected sources alone, found {found[0]}")
