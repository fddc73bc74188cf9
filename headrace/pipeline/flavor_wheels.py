"""The wheels of any flavor, by the stage that builds them."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import ConfigurationError
from headrace.pipeline import wheels
from headrace.pipeline.flashinfer import Mode
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import require_flavor
from headrace.pipeline.wheels_sm103 import build_sm103

# Compilers, linkers and the builds that call them split what they are told at each of these.
SPLITS = re.compile(r"""[\s'"\\$:;,=]""")


def require_place(layout: Layout) -> None:
    """Refuse a checkout in whose path nothing can be compiled, before anything is fetched.

    Raises:
        ConfigurationError: its path holds a space or another sign at which builds split.
    """
    if found := SPLITS.search(str(layout.root)):
        raise ConfigurationError(
            f"{layout.root}: expected a path without {found[0]!r}, at which compilers split their "
            "options, found one; clone into another folder"
        )


def require_fitting(flavor: str, module: Mode, *, stock: bool = False) -> None:
    """Refuse options that would be passed over, before anything is fetched.

    Raises:
        ConfigurationError: there is no such flavor, or it has no such module or stock wheel.
    """
    require_flavor(flavor)
    if flavor == "cpu" and module != "jit":
        raise ConfigurationError(
            f"--module: expected none for flavor cpu, which has no FlashInfer, found '{module}'; "
            "leave it out, or add --flavor sm103"
        )
    if flavor != "cpu" and stock:
        raise ConfigurationError(
            f"--stock: expected flavor cpu, whose tests compare with it, found '{flavor}'; "
            "leave it out"
        )


def build_wheels(
    layout: Layout, flavor: str, module: Mode = "jit", *, use_cache: bool = True
) -> list[Path]:
    """Build the patched wheels of `flavor` into build/wheels/FLAVOR; return them, LMCache's first.

    Args:
        module: of flavor "sm103", see flashinfer.py.
        use_cache: False compiles everything anew, for `reproduce`.
    """
    require_fitting(flavor, module)
    require_place(layout)
    if flavor == "sm103":
        return build_sm103(layout, module, use_cache=use_cache)
    return wheels.build_wheels(layout, flavor, use_cache=use_cache)
