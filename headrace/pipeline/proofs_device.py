"""The check of device code: each component's libraries hold code for the GPU of the flavor."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from headrace.pipeline.cuda import existing_toolkit
from headrace.pipeline.device_code import found_code
from headrace.pipeline.layer_files import each_file
from headrace.pipeline.pins import Pin, load_pins
from headrace.pipeline.proofs_module import built_record
from headrace.pipeline.records import WheelRecord
from headrace.pipeline.subject import RefutedError, Subject, site_relative

# Library → GPU code, of those that hold any.
Found = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class OtherGpus:
    """A library that holds nothing of its pin's `device-code` and is right: exactly this code."""

    code: frozenset[str]
    reason: str


EXCEPTIONS: Mapping[str, OtherGpus] = {
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": OtherGpus(
        frozenset({"sm_80", "compute_80"}),
        "FlashAttention 2 runs on newer GPUs by its PTX, which the driver compiles",
    ),
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": OtherGpus(
        frozenset({"sm_90a"}),
        "FlashAttention 3 is for Hopper alone; vLLM takes version 4 or 2 on compute capability 10",
    ),
}


def device_code(subject: Subject) -> str:
    """Every library with device code holds what pins.toml names for its component."""
    pins = [pin for pin in load_pins(subject.layout.pins).of_flavor(subject.flavor)
            if pin.device_code]  # fmt: skip
    owner: dict[str, Pin] = {}
    for wheel in subject.wheels:
        for pin in pins:
            if canonicalize_name(pin.name) == wheel.name:
                owner |= dict.fromkeys(wheel.extensions, pin)
                if problems := unrecorded(subject.scan.paths, wheel):
                    raise RefutedError(problems)
    wanted = {path: value for path, value in subject.scan.hashes.items()
              if site_relative(path) in owner}  # fmt: skip
    toolkit = existing_toolkit(subject.layout)
    found: dict[str, frozenset[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for path, copy in each_file(subject.folder, subject.image, wanted, Path(scratch)):
            found[site_relative(path)] = found_code(toolkit, copy)
    # Nothing of FlashInfer's is compiled in mode "jit".
    bare = {"flashinfer"} if built_record(subject)["mode"] == "jit" else set()
    if problems := judge(pins, owner, found, EXCEPTIONS, bare):
        raise RefutedError(problems)
    return summary(pins, owner, found)


def unrecorded(paths: Iterable[str], wheel: WheelRecord) -> list[str]:
    """Name each library of any layer in the wheel's packages that the wheel did not bring."""
    packages = {path.partition("/")[0] for path in wheel.files if path.endswith("/__init__.py")}
    return [
        f"/{path}: a library that {wheel.name} did not bring"
        for path in sorted(paths)
        if (relative := site_relative(path)) not in wheel.files
        and relative.partition("/")[0] in packages
        and re.search(r"\.so(\.\d+)*$", relative)
    ]


def judge(
    pins: Iterable[Pin],
    owner: Mapping[str, Pin],
    found: Found,
    exceptions: Mapping[str, OtherGpus],
    bare: Collection[str] = (),
) -> list[str]:
    """Name each library with the wrong code, each component with none, each stale exception.

    Args:
        owner: the pin of each library of the components.
        found: GPU code of each library in the image, empty where it holds none.
        bare: pins of which no library is compiled.
    """
    problems = []
    for path, code in sorted(found.items()):
        allowed = exceptions.get(path)
        right = allowed.code == code if allowed else bool(code & set(owner[path].device_code))
        if code and not right:
            wanted = sorted(allowed.code) if allowed else owner[path].device_code
            problems.append(
                f"{path}: expected device code for {' or '.join(wanted)}, found "
                f"{', '.join(sorted(code))}"
            )
    for path in exceptions:
        if not found.get(path):
            problems.append(f"{path}: an exception that no library with device code needs")
    for pin in pins:
        libraries = [path for path, of in owner.items() if of.id == pin.id]
        if pin.id in bare and libraries:
            problems.append(f"{pin.id}: expected sources alone, found {libraries[0]}")
        if pin.id not in bare and not any(found.get(path) for path in libraries):
            problems.append(f"{pin.id}: expected device code, found none in any library")
    return problems


def summary(pins: Iterable[Pin], owner: Mapping[str, Pin], found: Found) -> str:
    """Say per component how many libraries hold which code, and how many hold none."""
    parts = []
    for pin in pins:
        codes = [found[path] for path, of in owner.items() if of.id == pin.id and path in found]
        named = Counter(
            ", ".join(sorted(code & set(pin.device_code))) or "excepted: " + ", ".join(sorted(code))
            for code in codes
            if code
        )
        said = [f"{count} with {code}" for code, count in sorted(named.items())]
        if none := sum(not code for code in codes):
            said.append(f"{none} without any")
        parts.append(f"{pin.id}: {'; '.join(said) or 'sources alone'}")
    return ". ".join(parts)
