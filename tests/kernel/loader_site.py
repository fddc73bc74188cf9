"""A site-packages folder with FlashInfer's real loader, and stand-ins for what needs a GPU.

FlashInfer's package as a whole imports CUDA. Its loader, jit/env.py and jit/core.py, imports torch
and tvm_ffi, of which it uses next to nothing here, and compiles with nvcc and ninja: nvcc is C's
compiler here, and a module is a library that tells whether it came from patched sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.engine.kernel_module import RECORD

MODULE = "fused_moe_trtllm_sm100"
SYMBOL = "__tvm_ffi_trtllm_moe_activation_patch_id"
SOURCE = "flashinfer/data/csrc/kernel.cu"
AOT = f"flashinfer/data/aot/{MODULE}/{MODULE}.so"
PATCHED_C = f"int {SYMBOL}(void) {{ return 1; }}\n"
STOCK_C = "int __tvm_ffi_other(void) { return 0; }\n"

TORCH = """
class version: cuda = "13.0"
class _C: _GLIBCXX_USE_CXX11_ABI = True
def __getattr__(name): return name
"""
TVM_FFI = """
import ctypes
class libinfo:
    find_include_path = find_dlpack_include_path = staticmethod(lambda: "/usr/include")
def load_module(path): return ctypes.CDLL(path)
"""
# What the stand-in for the package of stock modules says of itself.
JIT_CACHE = """
import pathlib
from flashinfer.version import __version__
class provider:
    provider_id, distribution, version = "sm103", "flashinfer-jit-cache", __version__
    jit_cache_dir = pathlib.Path(__file__).parent / "modules"
    cuda_architectures = ["sm103a"]
    modules = [path.name for path in jit_cache_dir.iterdir()]
def get_jit_cache_providers(): return [provider]
"""
NVCC = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0 ;;
    -MF) dependencies=$2; shift ;;
    -c) source=$2; shift ;;
    -o) object=$2; shift ;;
    esac
    shift
done
exec cc -x c -fPIC -MD -MF "$dependencies" -c "$source" -o "$object"
"""
CHILD = """
import ctypes, json, sys
name, source, symbol, earlier = sys.argv[1:]
if earlier:
    kept = ctypes.CDLL(earlier)
from flashinfer.jit import core
error, spec = "", None
try:
    spec = core.gen_jit_spec(name, [source])
    spec.build_and_load()
except Exception as failure:
    error = f"{type(failure).__name__}: {failure}"
with open("/proc/self/maps") as lines:
    mapped = sorted({line.split(None, 5)[5].strip() for line in lines if "/" + name in line})
paths = [str(path) for path in spec.get_library_paths()] if spec else []
patched = [symbol in open(path, "rb").read().decode("latin-1") for path in mapped]
says = {"error": error, "mapped": mapped, "paths": paths, "patched": bool(mapped) and all(patched)}
print(json.dumps(says))
"""


@dataclass(frozen=True)
class Loaded:
    """What became of loading a module in a process of its own.

    Attributes:
        error: the exception's type and text, "" if it was loaded.
        mapped: the module's files in the process.
        paths: those that FlashInfer says it loads, to which its cubin loader is bound.
        patched: whether a file is mapped, and none without the patched sources' symbol.
        log: what FlashInfer logged.
    """

    error: str
    mapped: list[str]
    paths: list[str]
    patched: bool
    log: str


class LoaderSite:
    """One installation below `folder`, with the loader of the FlashInfer in `tree`."""

    def __init__(self, folder: Path, tree: Path) -> None:
        self.folder, self.cuda = folder / "site", folder / "cuda"
        self.home = folder / "home"
        package = self.folder / "flashinfer"
        for path in [*(tree / "flashinfer").glob("*.py"), *(tree / "flashinfer/jit").glob("*.py")]:
            target = self.folder / path.relative_to(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Their own imports are the whole of FlashInfer.
            target.write_text("" if path.name == "__init__.py" else path.read_text())
        self.write("torch/__init__.py", TORCH)
        self.write("tvm_ffi/__init__.py", TVM_FFI)
        self.write(SOURCE, PATCHED_C)
        (package / "data/include").mkdir()
        for name in ("libcudart.so", "libcuda.so"):
            place = self.cuda / "lib64" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("/* an empty linker script */\n")
        nvcc = self.cuda / "bin" / "nvcc"
        nvcc.parent.mkdir()
        nvcc.write_text(NVCC)
        nvcc.chmod(0o755)

    def write(self, path: str, content: str | bytes) -> Path:
        """Write a file below site-packages."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def record(self, mode: str, **changes: Any) -> None:
        """Record what lies here now, as `mode`."""
        library = self.folder / AOT
        says = {
            "module": MODULE, "mode": mode, "symbol": SYMBOL, "series_sha256": "5" * 64,
            "path": AOT if mode == "aot" else None,
            "sha256": _sha256(library) if mode == "aot" else None,
            "sources": {SOURCE: _sha256(self.folder / SOURCE)},
        }  # fmt: skip
        self.write(RECORD, json.dumps(says | changes))

    def add_stock_modules(self, library: Path, name: str = MODULE) -> Path:
        """Install a package of stock modules that has `library`; return its file of it."""
        file = self.write(f"flashinfer_jit_cache/modules/{name}/{name}.so", library.read_bytes())
        self.write("flashinfer_jit_cache/__init__.py", JIT_CACHE)
        return file

    def load(self, name: str = MODULE, earlier: Path | None = None) -> Loaded:
        """Load the module as FlashInfer does, in a process that has loaded `earlier` before."""
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, name, self.folder / SOURCE, SYMBOL, earlier or ""],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(self.folder),
                "FLASHINFER_WORKSPACE_BASE": str(self.home),
                "FLASHINFER_CUDA_ARCH_LIST": "10.3a",
                "CUDA_HOME": str(self.cuda),
            },
            cwd=self.folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return Loaded(**json.loads(ran.stdout), log=ran.stderr)


def compiled(source: str, target: Path) -> Path:
    """Compile C to the shared library `target`."""
    assert shutil.which("cc"), "cc is not installed; Debian: apt-get install gcc"
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["cc", "-x", "c", "-shared", "-fPIC", "-", "-o", target],
        input=source, text=True, check=True, timeout=60,
    )  # fmt: skip
    return target


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
