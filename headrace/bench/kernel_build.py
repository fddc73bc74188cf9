"""Compile both builds' activation and the driver for one GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.bench.kernel_source import activation_text, include_options
from headrace.console import call
from headrace.errors import MachineError

HERE = Path(__file__).parent
# FlashInfer's own, as far as they change code; its numbers are those of fast math.
FLAGS = (
    "-std=c++17", "-O3", "-DNDEBUG", "-use_fast_math", "--expt-relaxed-constexpr",
    "-static-global-template-stub=false", "--compiler-options=-fPIC,-fvisibility=hidden",
    "-DTLLM_GEN_EXPORT_INTERFACE", "-DTLLM_ENABLE_CUDA", "-DENABLE_BF16", "-DENABLE_FP8",
    "-DCUTLASS_ENABLE_GDC_FOR_SM100=1",
)  # fmt: skip


@dataclass(frozen=True)
class Programs:
    """What was compiled: a library for each build, and the program that runs both."""

    stock: Path
    patched: Path
    driver: Path


def find_nvcc(named: Path | None, gate: Path) -> Path:
    """Return nvcc: the one named, of CUDA_HOME, in PATH, or what the compile gate installed.

    Raises:
        MachineError: there is none.
    """
    for path in _candidates(named, gate):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    if named:
        raise MachineError(f"--nvcc {named}: expected a compiler, found none")
    raise MachineError(
        "expected nvcc 13.0 in PATH, below CUDA_HOME or by --nvcc, found none; "
        "`make compile-gate` installs one below build/gate"
    )


def _candidates(named: Path | None, gate: Path) -> Iterator[Path]:
    if named:
        yield named
        return
    if home := os.environ.get("CUDA_HOME"):
        yield Path(home, "bin", "nvcc")
    if found := shutil.which("nvcc"):
        yield Path(found)
    yield gate / "toolchain/nvidia/cu13/bin/nvcc"


def build_programs(nvcc: Path, arch: str, stock: Path, patched: Path, folder: Path) -> Programs:
    """Compile all three into `folder`.

    Raises:
        ConfigurationError: a tree has no activation.
        MachineError: nvcc fails; the message quotes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = Programs(folder / "stock.so", folder / "patched.so", folder / "driver")

    def side(tree: Path, target: Path) -> None:
        own = folder / f"{target.stem}-source"
        own.mkdir(exist_ok=True)
        (own / "activation.inc").write_text(activation_text(tree), encoding="utf-8")
        options = include_options(tree, own, HERE)
        _nvcc(nvcc, arch, ["-shared", *options, HERE / "kernel_side.cu", "-o", target])

    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(side, stock, made.stock),
            pool.submit(side, patched, made.patched),
            pool.submit(
                _nvcc, nvcc, arch,
                [f"-I{HERE}", HERE / "kernel_driver.cu", "-ldl", "-o", made.driver],
            ),
        ]  # fmt: skip
        for job in jobs:
            job.result()
    return made


def _nvcc(nvcc: Path, arch: str, arguments: list[str | Path]) -> None:
    # The wheels' folder is lib, not lib64, where nvcc looks by itself.
    libraries = nvcc.resolve().parent.parent / "lib"
    call(
        [
            nvcc, *FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", f"-L{libraries}",
            *arguments,
        ],
        error=MachineError,
        advice="nvcc 13.0 and g++ are needed",
    )  # fmt: skip
