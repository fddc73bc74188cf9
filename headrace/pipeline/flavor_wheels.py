"""The wheels of any flavor, by the stage that builds them."""

from __future__ import annotations

from pathlib import Path

from headrace.pipeline import wheels
from headrace.pipeline.flashinfer import Mode
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import require_flavor
from headrace.pipeline.wheels_sm103 import build_sm103


def build_wheels(
    layout: Layout, flavor: str, module: Mode = "jit", *, use_cache: bool = True
) -> list[Path]:
    """Build the patched wheels of `flavor` into build/wheels/FLAVOR; return them, LMCache's first.

    Args:
        module: of flavor "sm103", see flashinfer.py.
        use_cache: False compiles everything anew, for `reproduce`.
    """
    require_flavor(flavor)
    if flavor == "sm103":
        return build_sm103(layout, module, use_cache=use_cache)
    return wheels.build_wheels(layout, flavor, use_cache=use_cache)
