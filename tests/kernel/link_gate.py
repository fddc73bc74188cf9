"""Link FlashInfer's whole fused-MoE module from the patched sources, and look at the result.

Run by `ci/compile_gate.sh --link`. FlashInfer's own generator names sources and flags, and the
stage of `wheels --module aot` compiles and links: only the headers of the GEMM kernels stand in for
others (tests/kernel/gate_headers.py), and with them the checksum that the generator expects. So the
library belongs to no set of GEMM kernels that exists. It stays below build/gate, says in a section
of its own what it is, and never ships.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from unittest import mock

from headrace.bench.kernel_source import DATA
from headrace.errors import HeadraceError
from headrace.pipeline import aot, callers_settings
from headrace.pipeline.cuda import Toolkit, cuda_toolkit
from headrace.pipeline.device_code import found_code
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.pins import load_pins
from tests.kernel import linked, toolchain
from tests.kernel.compile_gate import EXPORT
from tests.kernel.gate_package import write_package

MARK = ".headrace.never-ships"
FUNCTION = "__tvm_ffi_"
NAMED = re.compile(r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*(\w+)")
# What FlashInfer's loader of GEMM kernels calls besides.
LOADER = ("FlashInferSetCubinCallback", "FlashInferSetCurrentCubin")
CUDA = ("libcudart.so.13", "libcuda.so.1")
SYSTEM = ("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2")
PLACE = "from flashinfer.artifacts import ArtifactPath; print(ArtifactPath.TRTLLM_GEN_BMM)"
EXPECT = "from flashinfer.artifacts import CheckSumHash; CheckSumHash.TRTLLM_GEN_BMM = {!r}; {}"


def link(layout: Layout, toolkit: Toolkit, tree: Path, work: Path) -> Path:
    """Compile and link the module of `tree` below `work`; what did not change is kept."""
    pin = load_pins(layout.pins).get("flashinfer")
    ours = {"PYTHONPATH": str(tree), "FLASHINFER_WORKSPACE_BASE": str(work)}
    asked = subprocess.run(
        ["env", *callers_settings.unset(ours), toolkit.python, "-B", "-c", PLACE],
        capture_output=True, text=True, check=True, timeout=900, env={**os.environ, **ours},
    )  # fmt: skip
    place = asked.stdout.split()[-1]
    package = work / "stand-in"
    sums = write_package(layout.build / "gate" / "headers", package, place, pin.version)
    with mock.patch.object(aot, "GENERATE", EXPECT.format(sums, aot.GENERATE)):
        aot.generate(layout, [tree, package], work, toolkit, pin.compile_for)
    (made,) = work.glob(f".cache/**/cached_ops/{aot.MODULE}/{aot.MODULE}.so")
    return made


def exported(sources: Collection[Path]) -> set[str]:
    """Return the symbols of the functions that sources export to Python."""
    return {f"{FUNCTION}{name}" for path in sources for name in NAMED.findall(path.read_text())}


def judge(
    code: Collection[str],
    defined: Collection[str],
    stock: Collection[str],
    unresolved: Collection[str],
    needed: Collection[str],
) -> list[str]:
    """Say what is wrong with the module; [] if nothing.

    Args:
        code: the GPU code in it.
        defined: the symbols that it exports.
        stock: the symbols that the pinned release exports.
        unresolved: the symbols that no library has.
        needed: the libraries that it names.
    """
    findings = []
    if set(code) != {"sm_103a"}:
        found = ", ".join(sorted(code)) or "none"
        findings.append(f"expected device code for sm_103a alone, found {found}")
    wanted = {*stock, EXPORT}
    for name in sorted(wanted - set(defined)):
        findings.append(f"expected the symbol {name}, found none")
    for name in sorted(set(defined) - wanted):
        # Two underscores more: what a function says of itself.
        if name.startswith(FUNCTION) and not name.startswith(f"{FUNCTION}_"):
            findings.append(f"expected no symbol {name}, which the release lacks")
    for name in sorted(unresolved):
        findings.append(f"expected {name} in CUDA's, tvm_ffi's or the C++ library, found none")
    for name in sorted(set(CUDA) - set(needed)):
        findings.append(f"expected to need {name}, found that it does not")
    for name in sorted(set(needed) - {*CUDA, *SYSTEM}):
        findings.append(f"expected to need CUDA's and the C++ library alone, found {name}")
    return findings


def main() -> int:
    layout = Layout.find()
    tree, work = toolchain.patched_tree(), layout.build / "gate" / "link"
    started = time.monotonic()
    try:
        toolkit = cuda_toolkit(layout)
        made = link(layout, toolkit, tree, work)
    except HeadraceError as failure:
        print(f"compile-gate: {failure}", file=sys.stderr)
        return 1
    seconds = round(time.monotonic() - started, 1)
    library = work / f"never-ships-{aot.MODULE}.so"
    linked.mark(made, library, MARK, "linked by a gate with stand-in headers: never ships\n")
    ninja = (made.parent / "build.ninja").read_text()
    sources = [
        Path(path).relative_to(tree.resolve())
        for path in re.findall(r"^build \S+\.o: \w+ (\S+)", ninja, re.MULTILINE)
    ]
    stock = exported([toolchain.stock_tree() / path for path in sources])
    others = [toolkit.home / "lib" / CUDA[0]]
    others += toolkit.python.parents[1].glob("lib/*/site-packages/tvm_ffi/lib/libtvm_ffi.so")
    code, needed = found_code(toolkit, library), linked.needed(library)
    missing = linked.unresolved(library, others)
    findings = judge(
        code, linked.symbols(library, "defined"), {*stock, *LOADER}, missing, needed
    )  # fmt: skip
    report = {
        "ships": False,
        "library": library.relative_to(layout.root).as_posix(),
        "sha256": hash_file(library),
        "bytes": library.stat().st_size,
        "seconds": seconds,
        "sources": [path.relative_to(DATA).as_posix() for path in sources],
        "code": sorted(code),
        "exports": sorted({*stock, *LOADER, EXPORT}),
        "needs": sorted(needed),
        "findings": findings,
    }
    (layout.build / "gate" / "link.json").write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{library}: {len(sources)} sources, {seconds:.0f} s, {report['bytes']} bytes, never ships"
    )
    for finding in findings:
        print(f"compile-gate: {library.name}: {finding}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
