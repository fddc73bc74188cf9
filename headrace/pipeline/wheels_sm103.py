"""The wheels of flavor "sm103" that need no compiler: FlashInfer's patched sources, and headrace.

What a later compile could not get right is refused here already: an architecture in pins.toml that
a build would turn into another one, or that SM103 does not run.
"""

from __future__ import annotations

from pathlib import Path

from headrace.errors import ConfigurationError
from headrace.pipeline import wheels
from headrace.pipeline.architectures import request_fault
from headrace.pipeline.flashinfer import flashinfer_wheel, require_no_stock_modules
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pins, load_pins

FLAVOR = "sm103"


def build_sm103(layout: Layout) -> list[Path]:
    """Build those wheels into build/wheels/sm103; return them.

    Raises:
        ConfigurationError: pins.toml asks for code that SM103 does not run, or pins stock modules.
        WheelError: FlashInfer's tree holds anything that is compiled.
    """
    pins = load_pins(layout.pins)
    require_requests(pins)
    require_no_stock_modules(pins)
    folder = layout.wheels(FLAVOR)
    return [flashinfer_wheel(layout, pins), wheels.own_wheel(layout, folder)]


def require_requests(pins: Pins) -> None:
    """Raise ConfigurationError unless every `compile-for` of the flavor gives code for SM103."""
    for pin in pins.of_flavor(FLAVOR):
        if pin.patched and (fault := request_fault(pin)):
            raise ConfigurationError(
                f"{pins.path}: [{pin.id}] compile-for: expected {fault.expected}, found "
                f"{fault.found}; correct it and run the command again"
            )
