"""Compile FlashInfer's fused-MoE module ahead of time, as FlashInfer would at its first start.

FlashInfer's own generator names the sources, the flags and the headers, and checks each header by
sha256. The headers come with flashinfer-cubin of the same version; nothing is downloaded here.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from headrace.console import call, disk_error, working
from headrace.errors import WheelError
from headrace.pipeline import callers_settings, prefix_maps, sources
from headrace.pipeline.archive import unpack
from headrace.pipeline.cuda import Toolkit
from headrace.pipeline.device_code import found_code
from headrace.pipeline.layout import Layout
from headrace.pipeline.machine import GIB, jobs
from headrace.pipeline.manifest import Manifest, hash_file, hash_tree
from headrace.pipeline.pins import Pins

MODULE = "fused_moe_trtllm_sm100"
PLACE = f"flashinfer/data/aot/{MODULE}/{MODULE}.so"
HEADERS = "flashinfer-cubin"
# With the whole list of kernels one of its files took 4.9 GB of nvcc.
MEMORY_OF_ONE = 5 * GIB
TIMEOUT_S = 7200.0
# Where the sources seem to lie, wherever they are compiled.
SOURCES = "/usr/src/flashinfer"
GENERATE = (
    "from flashinfer.jit.fused_moe import gen_trtllm_gen_fused_moe_sm100_module as generate; "
    "generate().build(verbose=True)"
)


def build_module(layout: Layout, pins: Pins, tree: Path, toolkit: Toolkit) -> Path:
    """Compile the module from the patched `tree` of FlashInfer; return the library.

    Raises:
        SourceError: flashinfer-cubin is not locked, or cannot be had.
        WheelError: the compile failed, or its result lacks the code that pins.toml promises.
    """
    pin, cubin = pins.get("flashinfer"), pins.get(HEADERS)
    archive = sources.fetch_pin(layout, cubin)
    work = layout.build / "aot"
    library = work / f"{MODULE}.so"
    inputs = {
        "tree": hash_tree(tree),
        "headers": cubin.sha256,
        "toolkit": hash_file(layout.build / "cuda" / "headrace-lock"),
        "compile-for": pin.compile_for,
        "stage": hash_file(Path(__file__)) + hash_file(Path(prefix_maps.__file__)),
    }

    def compile_module() -> None:
        shutil.rmtree(work, ignore_errors=True)
        unpack(archive, work / "cubin")
        generate(layout, [tree, work / "cubin"], work, toolkit, pin.compile_for)
        made = sorted(work.glob(f"**/cached_ops/{MODULE}/{MODULE}.so"))
        if len(made) != 1:
            raise WheelError(f"{work}: expected one {MODULE}.so, found {len(made)}")
        code = found_code(toolkit, made[0])
        if not code & set(pin.device_code):
            raise WheelError(
                f"{made[0]}: expected device code for {' or '.join(pin.device_code)}, found "
                f"{', '.join(sorted(code)) or 'none'}"
            )
        made[0].replace(library)

    try:
        Manifest(layout).run(f"aot {MODULE}", inputs, [library], compile_module)
    except OSError as failure:
        raise disk_error(failure, work) from failure
    return library


def generate(
    layout: Layout, path: list[Path], work: Path, toolkit: Toolkit, compile_for: str
) -> None:
    """Run FlashInfer's generator and compile what it names, below `work`.

    Args:
        path: folders of Python modules: FlashInfer, and flashinfer_cubin where it is at hand.
    """
    log = layout.logs / f"aot-{MODULE}.log"
    log.unlink(missing_ok=True)
    # No wheel brings the driver's library, which the module names and the GPU's machine has.
    stub = work / "stubs" / "libcuda.so"
    stub.parent.mkdir(parents=True, exist_ok=True)
    call(
        ["g++", "-shared", "-x", "c++", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o", stub],
        error=WheelError,
    )
    programs = [toolkit.python.parent, toolkit.home / "bin", os.environ.get("PATH", "")]
    seem = {path[0]: SOURCES, work: f"{SOURCES}/build", toolkit.python.parents[1]: "/usr"}
    maps = prefix_maps.seen_as({folder.resolve(): name for folder, name in seem.items()})
    settings = {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PATH": os.pathsep.join(map(str, programs)),
        "CUDA_HOME": str(toolkit.home),
        "FLASHINFER_CUDA_ARCH_LIST": compile_for,
        "FLASHINFER_WORKSPACE_BASE": str(work),
        "FLASHINFER_NO_DOWNLOAD": "1",
        # The same bytes wherever and whenever it is compiled: messages name files, and symbols that
        # nobody needs name nvcc's processes.
        "FLASHINFER_EXTRA_CFLAGS": " ".join(maps),
        "FLASHINFER_EXTRA_CUDAFLAGS": " ".join(f"-Xcompiler={each}" for each in maps),
        # FlashInfer's own -lcuda comes to nothing where the linker drops what serves no symbol.
        "FLASHINFER_EXTRA_LDFLAGS": (
            f"-L{stub.parent} -Wl,--strip-all,--no-as-needed -lcuda -Wl,--as-needed"
        ),
        "MAX_JOBS": str(jobs(MEMORY_OF_ONE)),
    }
    with working(f"compiling {MODULE}"):
        call(
            [
                "env", *callers_settings.unset(settings),
                *(f"{name}={value}" for name, value in settings.items()),
                toolkit.python, "-B", "-c", GENERATE,
            ],
            error=WheelError,
            log=log,
            timeout=TIMEOUT_S,
        )  # fmt: skip
