"""Compiles FlashInfer's activation, as a tree has it, into a program for the CPU."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from headrace.bench.kernel_source import (
    DATA,
    HEADERS,
    KERNELS,
    STAND_IN,
    WORKSET,
    activation_text,
    include_options,
)
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import load_pins

HERE = Path(__file__).parent
COMPILE_SECONDS = 280

# Without contraction, which x86-64 may do to one kernel and not to the other.
FLAGS = (
    "-std=c++17", "-O1", "-w", "-fpermissive", "-ffp-contract=off", "-rdynamic",
    "-DTLLM_GEN_EXPORT_INTERFACE", "-DTLLM_ENABLE_CUDA", "-DENABLE_FP8", "-DENABLE_BF16",
)  # fmt: skip


def patched_tree() -> Path:
    """Return the FlashInfer under test: HEADRACE_SITE, or the patched one of the build."""
    named = os.environ.get("HEADRACE_SITE")
    return _checked(Path(named) if named else Layout.find().patched / _folder(), "patch")


def stock_tree() -> Path:
    """Return the pristine release."""
    return _checked(Layout.find().sources / _folder(), "fetch")


def _folder() -> str:
    return load_pins(Layout.find().pins).projects["flashinfer"].folder


def _checked(tree: Path, command: str) -> Path:
    assert (tree / KERNELS).is_file(), (
        f"{tree}: expected FlashInfer's sources, found none; run: python build.py {command}"
    )
    return tree


def cuda_headers() -> Path:
    """Return the folder with cuda_runtime.h of the nvidia-cuda-runtime wheel."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for folder in sorted(Path(place).glob("c*/include")):
            if (folder / "cuda_runtime.h").is_file():
                return folder
    raise AssertionError("cuda_runtime.h: expected it of nvidia-cuda-runtime; run `make venv`")


def runner(tree: Path, workset: str | None = None) -> Path:
    """Compile the runner against `tree`, once per content; return the program.

    Args:
        workset: the text that ActivationWorkset.cuh shall have instead of the tree's.

    Raises:
        AssertionError: it does not compile; the message ends with the compiler's first complaint.
    """
    assert shutil.which("g++"), "g++ is not installed; Debian: apt-get install g++"
    cache = Layout.find().build / "kernel"
    cache.mkdir(parents=True, exist_ok=True)
    text = activation_text(tree)
    header = workset
    if header is None and (tree / WORKSET).is_file():
        header = (tree / WORKSET).read_text()
    prelude = _prelude(tree, cache)
    source = HERE / "activation_runner.cpp"
    digest = hashlib.sha256()
    for part in (prelude.name, text, header or "", source.read_text()):
        digest.update(part.encode() + b"\0")
    program = cache / f"activation-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    with tempfile.TemporaryDirectory(dir=cache) as name:
        folder = Path(name)
        (folder / "activation.inc").write_text(text)
        if header is not None:
            # Found before the tree's own of this name.
            own = folder / WORKSET.relative_to(DATA / "include")
            own.parent.mkdir(parents=True)
            own.write_text(header)
        made = folder / "program"
        _compile([f"-I{prelude}", f"-I{folder}", *_includes(tree), str(source), "-o", str(made)])
        made.replace(program)
    return program


def _includes(tree: Path) -> list[str]:
    return [*include_options(tree, HERE / "stand_in", HERE), "-isystem", str(cuda_headers())]


def _prelude(tree: Path, cache: Path) -> Path:
    """Compile what does not change between programs; return the folder to search first."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    digest.update(subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout)
    digest.update(f"{tree}".encode())
    parts = [HERE / "prelude.h", HERE / "simt.h", *sorted((HERE / "stand_in").rglob("*.*h"))]
    parts += sorted(STAND_IN.rglob("*.h"))
    for path in [*parts, tree / HEADERS / "DevKernel.h"]:
        digest.update(path.read_bytes())
    folder = cache / f"prelude-{digest.hexdigest()[:16]}"
    with (cache / ".prelude-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "prelude.h.gch").exists():
            folder.mkdir(exist_ok=True)
            made = folder / "partial"
            _compile(
                ["-x", "c++-header", *_includes(tree), str(HERE / "prelude.h"), "-o", str(made)]
            )
            made.replace(folder / "prelude.h.gch")
    return folder


def _compile(arguments: list[str]) -> None:
    command = ["g++", *FLAGS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 0, f"g++ {Path(arguments[-3]).name}: {(errors or [done.stderr])[0]}"
