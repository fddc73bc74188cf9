"""FlashInfer's wheel with patched sources, for flavor "sm103".

FlashInfer loads a precompiled module by its name and never compares it with the sources. So the
wheel holds sources alone, mode "jit": where no stock module is installed beside it, the first start
compiles the patched ones. headrace-module.json in it says the mode and the series.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from headrace.errors import ConfigurationError, WheelError
from headrace.pipeline import repack, sources, wheels
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest, hash_file, hash_tree
from headrace.pipeline.pins import Pins
from headrace.pipeline.series import read_series

MODULE = "fused_moe_trtllm_sm100"
RECORD = "flashinfer/data/headrace-module.json"
# The package of the stock modules, which FlashInfer prefers to its own sources.
STOCK_MODULES = "flashinfer-jit-cache"


def require_no_stock_modules(pins: Pins) -> None:
    """Raise ConfigurationError if the flavor pins what would be loaded in front of the sources."""
    if any(pin.name == STOCK_MODULES for pin in pins.of_flavor("sm103")):
        raise ConfigurationError(
            f"{pins.path}: expected no {STOCK_MODULES} in flavor sm103, found a pin: FlashInfer "
            "would load the stock module in front of the patched sources; remove it"
        )


def flashinfer_wheel(layout: Layout, pins: Pins) -> Path:
    """Pack the patched FlashInfer under its own version; return the wheel.

    Raises:
        WheelError: the tree holds anything that is compiled.
    """
    pin = pins.get("flashinfer")
    sources.fetch_pin(layout, pin)
    tree = wheels.patch_project(layout, pin)
    require_sources_alone(tree)
    wheel = layout.wheels("sm103") / pin.file
    series = read_series(layout, pin.id).sha256
    inputs = {
        "tree": hash_tree(tree),
        "series": series,
        "stage": hash_file(Path(__file__)) + hash_file(Path(repack.__file__)),
    }

    def pack() -> None:
        says = {"module": MODULE, "mode": "jit", "series_sha256": series}
        repack.repack(tree, wheel, {RECORD: (json.dumps(says, indent=1) + "\n").encode()})

    Manifest(layout).run("wheel sm103 flashinfer", inputs, [wheel], pack)
    return wheel


def require_sources_alone(tree: Path) -> None:
    """Raise WheelError if an unpacked FlashInfer brings anything that is compiled."""
    names = (path.relative_to(tree).as_posix() for path in tree.rglob("*.so*") if path.is_file())
    # Not every name with ".so" in it is a library: algorithm.sort_heap.h
    if found := sorted(name for name in names if re.search(r"\.so(\.\d+)*$", name)):
        raise WheelError(f"{tree}: expected sources alone, found {found[0]}")
