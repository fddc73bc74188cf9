"""Build the wheels of flavor "sm103" where no GPU is: LMCache with its CUDA extensions, FlashInfer
with patched sources, and headrace itself.

What cannot come out right is refused before the first compile: an architecture that a build would
turn into another one or that SM103 does not run, and an nvcc that does not know it. What came out
is looked at with cuobjdump before it counts as built.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from headrace.console import call, disk_error, say
from headrace.errors import ConfigurationError, MachineError, SourceError
from headrace.pipeline import aot, cuda, pip_wheel, prefix_maps, sources, wheels
from headrace.pipeline.architectures import Fault, nvcc_fault, request_fault
from headrace.pipeline.cuda import Toolkit, cuda_toolkit
from headrace.pipeline.device_code import require_device_code
from headrace.pipeline.flashinfer import Mode, flashinfer_wheel, require_mode
from headrace.pipeline.layout import Layout
from headrace.pipeline.machine import GIB, jobs
from headrace.pipeline.manifest import Manifest, hash_file, hash_text, hash_tree
from headrace.pipeline.pins import Pin, Pins, load_pins
from headrace.pipeline.requirements import link_or_copy

FLAVOR = "sm103"
# The heaviest translation unit of LMCache took 2.7 to 3.0 GiB of nvcc, as its own build says.
MEMORY_OF_ONE = 3 * GIB
TAG = "cp311-cp311-linux_x86_64"


def build_sm103(layout: Layout, mode: Mode = "jit", *, use_cache: bool = True) -> list[Path]:
    """Build the patched wheels into build/wheels/sm103; return them, LMCache's first.

    Where FlashInfer's module cannot be compiled, the other wheels are still built.

    Args:
        mode: how FlashInfer's fused-MoE module gets into an image; see flashinfer.py.
        use_cache: False compiles everything anew.

    Raises:
        ConfigurationError: pins.toml asks for what cannot be compiled or does not run on SM103.
        SourceError: a pin, or a wheel of the toolkit, cannot be had.
        WheelError: a compile failed, or its result lacks the code that pins.toml promises.
    """
    wheels.require_python()
    pins = load_pins(layout.pins)
    require_requests(pins)
    require_mode(pins, mode)
    missing = headers_fault(layout, pins) if mode == "aot" else None
    if missing:
        say(f"FlashInfer's wheel will be missing: {missing}")
    toolkit = cuda_toolkit(layout)
    require_nvcc(pins, toolkit)
    for pin in compiled(pins):
        sources.fetch_pin(layout, pin)
    lmcache = _lmcache(layout, pins.get("lmcache"), toolkit, use_cache)
    own = wheels.own_wheel(layout, layout.wheels(FLAVOR))
    released = place_cubins(layout, pins, "jit" if missing else mode)
    if missing:
        # One of the other mode may lie there, and would get into an image.
        (layout.wheels(FLAVOR) / pins.get("flashinfer").file).unlink(missing_ok=True)
        raise missing
    return [lmcache, flashinfer_wheel(layout, pins, toolkit, mode), own, *released]


def place_cubins(layout: Layout, pins: Pins, mode: Mode) -> list[Path]:
    """Put the released wheel of GPU code that the module loads beside ours, in mode "aot" alone.

    The first start of mode "jit" downloads what it needs of it.
    """
    wheel = layout.wheels(FLAVOR) / pins.get(aot.HEADERS).file
    try:
        wheel.unlink(missing_ok=True)
        if mode == "jit":
            return []
        wheel.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(sources.fetch_pin(layout, pins.get(aot.HEADERS)), wheel)
    except OSError as failure:
        raise disk_error(failure, wheel) from failure
    return [wheel]


def headers_fault(layout: Layout, pins: Pins) -> SourceError | None:
    """Return why the headers that mode "aot" compiles with cannot be had, None if they are."""
    try:
        sources.fetch_pin(layout, pins.get(aot.HEADERS))
    except SourceError as missing:
        return missing
    return None


def require_requests(pins: Pins) -> None:
    """Raise ConfigurationError unless every `compile-for` of the flavor gives code for SM103."""
    for pin in compiled(pins):
        _refuse(pins, pin, request_fault(pin), "compile-for")


def require_nvcc(pins: Pins, toolkit: Toolkit) -> None:
    """Raise ConfigurationError unless the toolkit's nvcc can compile what is asked for."""
    release, known = toolkit.release(), toolkit.architectures()
    for pin in compiled(pins):
        _refuse(pins, pin, nvcc_fault(pin, release, known), f"locks/{cuda.LOCK}")


def compiled(pins: Pins) -> list[Pin]:
    """Return the pins of the flavor that are compiled here."""
    return [pin for pin in pins.of_flavor(FLAVOR) if pin.patched]


def _refuse(pins: Pins, pin: Pin, fault: Fault | None, where: str) -> None:
    if fault is not None:
        raise ConfigurationError(
            f"{pins.path}: [{pin.id}] {where}: expected {fault.expected}, found {fault.found}; "
            "correct it and run the command again"
        )


def _lmcache(layout: Layout, pin: Pin, toolkit: Toolkit, use_cache: bool) -> Path:
    tree = wheels.patch_project(layout, pin)
    version = wheels.patched_version(layout, pin)
    wheel = layout.wheels(FLAVOR) / f"lmcache-{version}-{TAG}.whl"
    work = layout.work / FLAVOR
    inputs = {
        "source": hash_tree(tree),
        "version": version,
        "toolkit": hash_file(layout.build / "cuda" / "headrace-lock"),
        "compile-for": pin.compile_for,
        "device-code": " ".join(pin.device_code),
        "compiler": hash_text(call(["g++", "--version"], error=MachineError)),
        "python": platform.python_version(),
        "stage": pip_wheel.stage_hash(__file__),
    }

    def build() -> None:
        env = _environment(pin, toolkit, version, work)
        env |= {
            # What ccache would go by is nvcc's time, which every installation of it changes.
            "CCACHE_COMPILERCHECK": f"string:{inputs['toolkit']}{inputs['compiler']}",
            **({} if use_cache else {"CCACHE_DISABLE": "1"}),
        }
        pip_wheel.build_copy(layout, tree, work, wheel, env, toolkit.python)
        try:
            found = require_device_code(toolkit, pin, wheel)
        except BaseException:
            wheel.unlink()
            raise
        for name, code in found.items():
            say(f"{name}: {', '.join(sorted(code))}")

    Manifest(layout).run("wheel sm103 lmcache", inputs, [wheel], build)
    return wheel


def _environment(pin: Pin, toolkit: Toolkit, version: str, work: Path) -> dict[str, str]:
    mapped = prefix_maps.options(work, toolkit.python.parents[1])
    return {
        "BUILD_WITH_CUDA": "1",
        "CUDA_HOME": str(toolkit.home),
        "LMCACHE_CUDA_MAJOR": str(toolkit.release()[0]),
        "TORCH_CUDA_ARCH_LIST": pin.compile_for,
        # Ninja and nvcc are looked up in PATH.
        "PATH": os.pathsep.join(
            [str(toolkit.python.parent), str(toolkit.home / "bin"), os.environ.get("PATH", "")]
        ),
        "PYTORCH_NVCC": f"ccache {toolkit.nvcc}" if shutil.which("ccache") else str(toolkit.nvcc),
        "NVCC_APPEND_FLAGS": " ".join(f"-Xcompiler={each}" for each in mapped),
        "NVCC_THREADS": "1",
        "MAX_JOBS": str(jobs(MEMORY_OF_ONE)),
        "SETUPTOOLS_SCM_PRETEND_VERSION": version,
        "CFLAGS": " ".join(["-g0", *mapped]),
        # The names of nvcc's temporary files, which hold its process id, are local symbols.
        "LDFLAGS": "-Wl,--strip-all",
    }
