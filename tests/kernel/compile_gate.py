"""Compile what the FlashInfer series touches for the GPUs it is for, and judge the device code.

Run by ci/compile_gate.sh, which brings nvcc and the headers. Ends with 0 if all is well, 1 if not,
with a line for each finding; what was measured lies in build/gate/report.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.bench.kernel_source import DATA, KERNELS
from headrace.pipeline.layout import Layout
from tests.kernel import toolchain
from tests.kernel.device_code import Kernel, exports, kernels_of

# The file with the kernel for every GPU that it may run on; the others, which only hand on the
# pointers, for the one that headrace is for. `sm_90a` is for the bench: FlashInfer has no module.
UNITS = (
    (KERNELS, "103a"),
    (KERNELS, "100a"),
    (KERNELS, "90a"),
    (DATA / "csrc/trtllm_fused_moe_runner.cu", "103a"),
    (DATA / "csrc/trtllm_fused_moe_kernel_launcher.cu", "103a"),
)
# FlashInfer's own flags of the module fused_moe_trtllm_sm100.
FLAGS = (
    "-std=c++17", "-DPy_LIMITED_API=0x03090000", "--compiler-options=-fPIC",
    "--expt-relaxed-constexpr", "-static-global-template-stub=false", "-use_fast_math",
    "-DFLASHINFER_ENABLE_F16", "-DFLASHINFER_ENABLE_BF16", "-DFLASHINFER_ENABLE_FP8_E4M3",
    "-DFLASHINFER_ENABLE_FP8_E5M2", "-DFLASHINFER_ENABLE_FP8_E8M0",
    "-DFLASHINFER_ENABLE_FP4_E2M1", "-DNDEBUG", "-O3", "-DTLLM_GEN_EXPORT_INTERFACE",
    "-DTLLM_GEN_EXPORT_FLASHINFER", "-DTLLM_ENABLE_CUDA", "-DENABLE_BF16", "-DENABLE_FP8",
    "-DENABLE_FP4", "-DCUTLASS_ENABLE_GDC_FOR_SM100=1", '-DTLLM_GEN_GEMM_CUBIN_PATH="gate"',
)  # fmt: skip
WORKSET = "activationDeepSeekWorkset"
PLAIN = f"{WORKSET}Kernel"
RELEASE = "activationDeepSeekKernel"
EXPORT = "__tvm_ffi_trtllm_moe_activation_patch_id"
# Of 65,536 on a multiprocessor: twelve blocks of 128 threads.
MOST_REGISTERS = 40
# The largest file takes 2 minutes of a core that it has to itself.
SECONDS = 3600
TIMED_OUT = 124  # as `timeout` says it


@dataclass(frozen=True)
class Compiled:
    """One object, the seconds that it took, and those of a core that the compiler used."""

    source: Path
    arch: str
    path: Path
    seconds: float
    cpu_seconds: float


def command(tree: Path, gate: Path, source: Path, arch: str, made: Path) -> list[str]:
    """Return the nvcc call that compiles a file of `tree` for one architecture."""
    site = gate / "toolchain"
    cuda = site / "nvidia" / "cu13"
    data = tree / DATA
    first = [gate / "headers", data / "csrc/nv_internal", data / "csrc/nv_internal/include"]
    first += [data / "cccl" / name for name in ("cub", "libcudacxx/include", "thrust")]
    system = [cuda / "include", site / "tvm_ffi/include", data / "include", data / "csrc"]
    system += [data / "cutlass/include", data / "cutlass/tools/util/include"]
    system += [data / "spdlog/include"]
    return [
        str(cuda / "bin" / "nvcc"), *FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}",
        *(f"-I{path}" for path in first), *(f"-isystem={path}" for path in system),
        "-c", str(tree / source), "-o", str(made),
    ]  # fmt: skip


def judge(kernels: Sequence[Kernel]) -> list[str]:
    """Say what is wrong with the device code of the file that holds the kernels; [] if nothing."""
    findings = [
        f"{kernel.arch} {kernel.name}: spills, {kernel.stack} + {kernel.local} bytes"
        for kernel in kernels
        if kernel.stack or kernel.local
    ]
    ours = [kernel for kernel in kernels if WORKSET in kernel.name]
    if len(ours) != 4:
        findings.append(f"{WORKSET}*: expected 2 kernels with and without PDL, found {len(ours)}")
    for kernel in ours:
        where = f"{kernel.arch} {_title(kernel)}"
        loads, stores = kernel.count(r"LDG\.E\.128"), kernel.count(r"STG\.E\.128")
        if (loads, stores) != (2, 1):
            findings.append(
                f"{where}: expected 2 loads and 1 store of 16 bytes, found {loads} and {stores}"
            )
        for pattern, what in (
            (r"(LDG|STG)\.E\.[US]8", "accesses of one byte"),
            (r"BAR", "barriers"),
            (r"(LDS|STS)", "accesses to shared memory"),
        ):
            if count := kernel.count(pattern):
                findings.append(f"{where}: expected no {what}, found {count}")
        if kernel.shared > 1024:
            findings.append(f"{where}: expected no shared memory, found {kernel.shared} bytes")
        if kernel.registers > MOST_REGISTERS:
            findings.append(
                f"{where}: expected at most {MOST_REGISTERS} registers, found {kernel.registers}"
            )
    # A product and a sum in one rounding, in one kernel and not in the other, are other bits.
    for kernel in kernels:
        compared = RELEASE in kernel.name and "float_e4m3" in kernel.name
        if (compared or WORKSET in kernel.name) and (fused := kernel.count(r"FFMA")):
            findings.append(f"{kernel.arch} {kernel.name}: expected no FFMA, found {fused}")
    return findings


def compiled(tree: Path, gate: Path, source: Path, arch: str) -> Compiled | str:
    """Compile a file of `tree` for one architecture; return the object, or what went wrong."""
    unit = f"{source.name} for sm_{arch}"
    made = gate / "objects" / f"{source.stem}-{arch}.o"
    called = command(tree, gate, source, arch, made)
    with made.with_suffix(".log").open("w+") as log:
        started = time.monotonic()
        # By `wait4`, which knows the seconds of all that nvcc has started, and no limit of its own.
        process = subprocess.Popen(
            ["timeout", "--foreground", str(SECONDS), *called],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        log.seek(0)
        said = log.read()
    if process.returncode == TIMED_OUT:
        return f"{unit}: expected to end within {SECONDS} s, found it running"
    if process.returncode != 0:
        errors = [line for line in said.splitlines() if "error" in line]
        return f"{unit}: {(errors or [said.strip()])[0]}"
    each = Compiled(source, arch, made, seconds, used.ru_utime + used.ru_stime)
    print(f"{unit}: compiled in {seconds:.0f} s, {each.cpu_seconds:.0f} s of a core", flush=True)
    return each


def main() -> int:
    layout = Layout.find()
    gate, tree = layout.build / "gate", toolchain.patched_tree()
    (gate / "objects").mkdir(exist_ok=True)

    # The largest first; a compile takes up to 1.2 GB.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        results = list(pool.map(lambda unit: compiled(tree, gate, *unit), reversed(UNITS)))
    findings = [result for result in results if isinstance(result, str)]
    rows = []
    tools = gate / "toolchain/nvidia/cu13/bin"
    for result in results:
        if isinstance(result, str) or result.source != KERNELS:
            continue
        kernels = kernels_of(result.path, tools)
        findings += judge(kernels)
        if EXPORT not in exports(result.path):
            findings.append(f"{result.path.name}: expected the symbol {EXPORT}, found none")
        rows += [_row(kernel) for kernel in kernels if _shown(kernel)]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    report = {
        "ships": False,
        "units": {
            f"{each.source.name} sm_{each.arch}": {
                "seconds": round(each.seconds, 1),
                "cpu_seconds": round(each.cpu_seconds, 1),
                "bytes": each.path.stat().st_size,
            }
            for each in results
            if not isinstance(each, str)
        },
        "kernels": rows,
        "findings": findings,
    }
    (gate / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    for finding in findings:
        print(f"compile-gate: {finding}", file=sys.stderr)
    return 1 if findings else 0


def _shown(kernel: Kernel) -> bool:
    return WORKSET in kernel.name or (RELEASE in kernel.name and "float_e4m3_tELi4E" in kernel.name)


def _title(kernel: Kernel) -> str:
    if WORKSET not in kernel.name:
        return f"{RELEASE}<4>"
    return PLAIN if PLAIN in kernel.name else f"{WORKSET}GateKernel"


def _row(kernel: Kernel) -> dict[str, str | int]:
    return {
        "arch": kernel.arch,
        "kernel": _title(kernel),
        "registers": kernel.registers,
        "spill": kernel.local + kernel.stack,
        "shared": kernel.shared,
        "instructions": kernel.total,
        "16-byte": kernel.count(r"(LDG|STG)\.E\.128"),
        "1-byte": kernel.count(r"(LDG|STG)\.E\.[US]8"),
        "MUFU": kernel.count("MUFU"),
        "BAR": kernel.count("BAR"),
        "SHFL": kernel.count("SHFL"),
        "FFMA": kernel.count("FFMA"),
    }


if __name__ == "__main__":
    sys.exit(main())
