"""What the caller's environment says to compilers and builds, which ours shall not hear.

A wheel is remembered by its source, its compiler and the locks. An `NVCC_PREPEND_FLAGS=-G` or a
`CPATH` that somebody has set for another build would make another wheel under the same name, which
later runs without it take as finished; a `CXX` or `NO_NATIVE_EXT` ends the build after minutes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

_NAMES = (
    # Compilers and linkers.
    "CC", "CXX", "CPP", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED", "LDCXXSHARED",
    "AR", "ARFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
    "COMPILER_PATH", "GCC_EXEC_PREFIX", "CUDAHOSTCXX", "MAKEFLAGS",
    # Modules in front of those that are installed for the build.
    "PYTHONPATH",
    # LMCache's own.
    "ENABLE_CXX11_ABI", "NO_CUDA_EXT", "NO_GPU_EXT", "NO_NATIVE_EXT",
)  # fmt: skip
_BEGIN = (
    "CUDA", "NVCC", "TORCH_", "PYTORCH_", "FLASHINFER_", "LMCACHE_", "SETUPTOOLS_", "DISTUTILS_",
    "BUILD_", "AEROSPIKE_", "MOONCAKE_", "CMAKE_", "NINJA_",
)  # fmt: skip
_PATTERN = re.compile(f"(?:{'|'.join(_NAMES)})|(?:{'|'.join(_BEGIN)}).*")


def unset(ours: Collection[str]) -> list[str]:
    """Return the options of `env` that take the caller's settings away, save those named `ours`."""
    names = sorted(name for name in os.environ if _PATTERN.fullmatch(name) and name not in ours)
    return [f"--unset={name}" for name in names]
