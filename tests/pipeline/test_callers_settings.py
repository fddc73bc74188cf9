"""What somebody has set for a build of their own does not get into a wheel that is remembered."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from headrace.pipeline import pip_wheel
from headrace.pipeline.layout import Layout

# A build that tells what it was told.
SETUP = """
import os
from setuptools import setup
told = [name for name in sorted(os.environ) if os.environ[name].endswith("theirs")]
setup(name="toy", version="1", packages=[], description=f"{told} {os.environ['CFLAGS']}")
"""
FOREIGN = (
    "CXX", "CXXFLAGS", "CPATH", "LDFLAGS", "NO_NATIVE_EXT", "ENABLE_CXX11_ABI",
    "NVCC_PREPEND_FLAGS", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "FLASHINFER_CUDA_ARCH_LIST",
    "CFLAGS", "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_TOY", "BUILD_AEROSPIKE", "PYTHONPATH",
)  # fmt: skip
KEPT = ("CCACHE_DIR", "HOME", "CUDDLE")


def test_a_build_hears_our_settings_and_not_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*FOREIGN, *KEPT):
        monkeypatch.setenv(name, str(tmp_path / "theirs"))
    layout, work = Layout(tmp_path), tmp_path / "work"
    work.mkdir()
    (work / "setup.py").write_text(SETUP)
    wheel = tmp_path / "wheels" / "toy-1-py3-none-any.whl"
    pip_wheel.build(layout, work, wheel, {"CFLAGS": "ours"})
    with zipfile.ZipFile(wheel) as packed:
        metadata = packed.read("toy-1.dist-info/METADATA").decode()
    assert f"Summary: {sorted(KEPT)} ours\n" in metadata
