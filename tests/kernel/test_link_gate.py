"""The judgement of the whole module that a gate links, and how it reads one."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from tests.kernel import linked
from tests.kernel.compile_gate import EXPORT
from tests.kernel.gate_headers import EXPORT as HEADERS
from tests.kernel.gate_package import write_package
from tests.kernel.link_gate import CUDA, LOADER, exported, judge

STOCK = {"__tvm_ffi_trtllm_bf16_moe", *LOADER}
GOOD = {
    "code": {"sm_103a"},
    "defined": {*STOCK, EXPORT, "__tvm_ffi__metadata_trtllm_bf16_moe", "_ZN1a1bEv"},
    "stock": STOCK,
    "unresolved": set[str](),
    "needed": {*CUDA, "libc.so.6"},
}


def test_a_good_module_is_passed() -> None:
    assert judge(**GOOD) == []


@pytest.mark.parametrize(
    ("part", "found", "finding"),
    [
        ("code", {"sm_103a", "sm_100a"}, "sm_103a alone, found sm_100a, sm_103a"),
        ("code", {"sm_103a", "compute_103a"}, "sm_103a alone, found compute_103a, sm_103a"),
        ("code", set[str](), "sm_103a alone, found none"),
        ("defined", STOCK, f"expected the symbol {EXPORT}, found none"),
        ("defined", {*LOADER, EXPORT}, "expected the symbol __tvm_ffi_trtllm_bf16_moe, found none"),
        ("defined", {*STOCK, EXPORT, "__tvm_ffi_other"}, "expected no symbol __tvm_ffi_other"),
        ("unresolved", {"_ZN3c104fooEv"}, "expected _ZN3c104fooEv in"),
        ("needed", {"libcudart.so.13"}, "expected to need libcuda.so.1, found that it does not"),
        ("needed", {*CUDA, "libcublas.so.13"}, "alone, found libcublas.so.13"),
    ],
)
def test_each_fault_is_found(part: str, found: set[str], finding: str) -> None:
    (only,) = judge(**{**GOOD, part: found})
    assert finding in only


def build(folder: Path, name: str, source: str, *options: str) -> Path:
    made = folder / f"lib{name}.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made), "-x", "none", *options]
    subprocess.run(command, input=source, text=True, check=True, timeout=120)
    return made


def test_symbols_are_looked_for_in_the_libraries(tmp_path: Path) -> None:
    runtime = build(
        tmp_path, "runtime", 'extern "C" int cudaFree(void*) { return 0; }',
        "-Wl,-soname,libcudart.so.13",
    )  # fmt: skip
    library = build(
        tmp_path, "module",
        "#include <stdexcept>\n"
        'extern "C" int cudaFree(void*), cuInit(unsigned), cublasCreate(void*);\n'
        'extern "C" int made() { if (cuInit(0)) throw std::runtime_error("x");'
        " return cudaFree(nullptr) + cublasCreate(nullptr); }",
        str(runtime),
    )  # fmt: skip
    assert linked.unresolved(library, [runtime]) == {"cublasCreate"}
    assert linked.unresolved(library, []) == {"cublasCreate", "cudaFree"}
    assert "made" in linked.symbols(library, "defined")
    assert "libcudart.so.13" in linked.needed(library)


def test_the_library_says_that_it_never_ships(tmp_path: Path) -> None:
    made = build(tmp_path, "module", "int made() { return 1; }")
    library = tmp_path / "marked.so"
    linked.mark(made, library, ".headrace.never-ships", "never ships")
    assert b"never ships" in library.read_bytes()
    assert b"never ships" not in made.read_bytes()
    assert linked.symbols(library, "defined") == linked.symbols(made, "defined")


def test_exports_are_read_from_sources(tmp_path: Path) -> None:
    source = tmp_path / "launcher.cu"
    source.write_text(
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(one, one);\n"
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(\n    two,\n    two_of_it);\nvoid three();\n"
    )
    assert exported([source]) == {"__tvm_ffi_one", "__tvm_ffi_two"}


def test_the_package_is_what_its_checksums_say(tmp_path: Path) -> None:
    headers, folder = tmp_path / "headers", tmp_path / "package"
    own = headers / HEADERS / "trtllmGen_bmm_export/trtllm/gen/DtypeDecl.h"
    own.parent.mkdir(parents=True)
    own.write_text("#pragma once\n")
    (headers / "flashinferMetaInfo.h").write_text("// eight kernels\n")
    (headers / "cublas_v2.h").write_text("#pragma once\n")
    sums = write_package(headers, folder, "0a1b/batched_gemm/", "0.7.0.post1")
    place = folder / "flashinfer_cubin/cubins/0a1b/batched_gemm"
    listed = (place / "checksums.txt").read_bytes()
    assert hashlib.sha256(listed).hexdigest() == sums
    entries = [line.split() for line in listed.decode().splitlines()]
    assert [path for _, path in entries] == [
        "include/flashinferMetaInfo.h",
        "include/trtllmGen_bmm_export/trtllm/gen/DtypeDecl.h",
    ]
    for sha256, path in entries:
        assert hashlib.sha256((place / path).read_bytes()).hexdigest() == sha256
    said = (folder / "flashinfer_cubin/__init__.py").read_text()
    assert re.search(r'^__version__ = "0.7.0.post1"$', said, re.MULTILINE)
    before = own.stat().st_mtime_ns, (place / entries[1][1]).stat().st_mtime_ns
    assert write_package(headers, folder, "0a1b/batched_gemm/", "0.7.0.post1") == sums
    assert (own.stat().st_mtime_ns, (place / entries[1][1]).stat().st_mtime_ns) == before
