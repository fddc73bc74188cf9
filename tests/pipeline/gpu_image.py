"""An image of flavor "sm103" in small: what `verify` finds in one where no GPU is.

Besides the toy it carries FlashInfer's real loader and the record of a module, and a library that
asks for the GPU's driver. What torch would bring is a stand-in.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.engine.kernel_module import RECORD
from tests.kernel.loader_site import MODULE, SOURCE, SYMBOL, TORCH, TVM_FFI
from tests.kernel.toolchain import patched_tree
from tests.pipeline.python_image import CONFIG, SERIES, SITE, PythonImage, wheel
from tests.pipeline.sample_image import Entry
from tests.pipeline.toy import PINS
from tests.proof.test_symbols import build

VERSION = "0.7.0.post1"
PLACE = f"flashinfer/data/aot/{MODULE}/{MODULE}.so"
FLASHINFER = f"""
[flashinfer]
name = "flashinfer-python"
version = "{VERSION}"
kind = "pypi wheel"
file = "flashinfer_python-{VERSION}-py3-none-any.whl"
sha256 = "{"0" * 64}"
size = 1
license = "Apache-2.0"
flavors = ["sm103"]
patched = true
compile-for = "10.3a"
device-code = ["sm_103a"]
"""
GPU = "extern int cuInit(void); int call(void) { return cuInit(); }"
# Lists what the library says of itself in a line of its own.
CUOBJDUMP = """#!/bin/sh
for last; do :; done
strings -a "$last" | grep -E '^ELF file' || echo "does not contain device code"
"""


def holds(code: str) -> str:
    """Return C that makes `CUOBJDUMP` list a library with `code`."""
    return f'const char *listed = "ELF file    1: x.1.{code}.cubin\\n";\n'


class GpuImage(PythonImage):
    """As its base; `mode` is that of FlashInfer's module."""

    flavor = "sm103"

    def __init__(self, root: Path, interpreter: bytes, mode: str) -> None:
        super().__init__(root, interpreter)
        self.layout.pins.write_text(PINS.replace('["cpu"]', '["cpu", "sm103"]') + FLASHINFER)
        self.mode = mode
        stub = root / "stub/libcuda.so"
        build(stub, "int cuInit(void) { return 1; }", "-Wl,-soname,libcuda.so.1")
        build(root / "gpu.so", GPU, f"-L{stub.parent}", "-lcuda")
        files = self.loader() | self.module(root)
        (own,) = self.layout.wheels("sm103").glob("toy-*.whl")
        toy = {path.removeprefix(f"{SITE}/"): data for path, data in self.site.items()
               if path.startswith(f"{SITE}/toy/")}  # fmt: skip
        toy["toy/gpu.so"] = (root / "gpu.so").read_bytes()
        for name, version, content in (
            ("toy", own.name.split("-")[1], toy), ("flashinfer_python", VERSION, files)
        ):  # fmt: skip
            made = wheel(self.layout.wheels("sm103"), name, version, content)
            self.site |= {f"{SITE}/{path}": data for path, data in made.items()}
        for name, text in (
            ("torch", TORCH),
            ("tvm_ffi", TVM_FFI),
            ("filelock", "FileLock = None\n"),
        ):
            self.site[f"{SITE}/{name}/__init__.py"] = text.encode()
        facts = {"series_sha256": SERIES, "files": {SOURCE: hashlib.sha256(b"patched").hexdigest()}}
        (self.layout.patched / f"flashinfer-{VERSION}.json").write_text(json.dumps(facts))
        toolkit = self.layout.build / "cuda"
        tool = toolkit / "lib/python3.11/site-packages/nvidia/cu13/bin/cuobjdump"
        tool.parent.mkdir(parents=True)
        tool.write_text(CUOBJDUMP)
        tool.chmod(0o755)
        # Of the others it is asked that they are there.
        for part in (tool.with_name("nvcc"), toolkit / "bin/python", toolkit / "headrace-lock"):
            part.parent.mkdir(exist_ok=True)
            part.write_text("")
        shutil.rmtree(root / "stub")

    def loader(self) -> dict[str, bytes]:
        package = patched_tree() / "flashinfer"
        files = {
            path.relative_to(patched_tree()).as_posix(): path.read_bytes()
            for path in [*package.glob("*.py"), *(package / "jit").glob("*.py")]
            if path.name != "__init__.py"
        }
        files["flashinfer/__init__.py"] = b"from .version import __version__\n"
        files["flashinfer/jit/__init__.py"] = b""
        return {**files, SOURCE: b"patched"}

    def module(self, root: Path) -> dict[str, bytes]:
        files, sha256 = {}, None
        if self.mode == "aot":
            sha256 = build(
                root / "module.so", holds("sm_103a") + f"int {SYMBOL}(void) {{ return 1; }}"
            )
            files[PLACE] = (root / "module.so").read_bytes()
        record = {
            "module": MODULE,
            "mode": self.mode,
            "path": PLACE if self.mode == "aot" else None,
            "sha256": sha256,
            "symbol": SYMBOL,
            "series_sha256": SERIES,
            "sources": {SOURCE: hashlib.sha256(b"patched").hexdigest()},
        }
        return {**files, RECORD: json.dumps(record).encode()}

    def build(
        self,
        *,
        planted: Mapping[str, Entry | bytes | str] | None = None,
        config: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> str:
        labels = {
            **CONFIG["Labels"],
            "org.headrace.flavor": "sm103",
            "org.headrace.kernel-module": self.mode,
        }
        # A layer of these tests has no empty folder, and the proofs write to a temporary one.
        settings = {"Labels": labels, "Env": [*CONFIG["Env"], "TMPDIR=/dev/shm"]}
        return super().build(planted=planted, config={**settings, **(config or {})}, **more)
