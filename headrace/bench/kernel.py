"""The DeepSeek activation on this machine's GPU, stock against patched: bits, then time."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from headrace.bench import kernel_plan
from headrace.bench.kernel_build import build_programs, find_nvcc
from headrace.bench.kernel_device import Device, find_device
from headrace.bench.kernel_plan import KernelPlan
from headrace.bench.kernel_result import KernelComparison, read_row
from headrace.bench.kernel_routing import Workset, random_slots, route
from headrace.errors import SuiteVoidError
from headrace.folder import output_folder

SEED = 7
DRIVER_SECONDS = 200


def compare_kernels(
    stock: Path,
    patched: Path,
    plan: KernelPlan,
    out: Path,
    step: Callable[[str], None],
    *,
    nvcc: Path | None = None,
    gate: Path = Path("build/gate"),
) -> KernelComparison:
    """Compile both builds, run every call of `plan` with both, and write out/bench-kernel.json.

    Raises:
        MachineError: there is no GPU for it, or no compiler.
        SuiteVoidError: the driver fails, or does not end.
    """
    started = time.monotonic()
    device = find_device()
    compiler = find_nvcc(nvcc, gate)
    step(f"compiling for {device.name} (sm_{device.arch})")
    with output_folder(out), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        programs = build_programs(compiler, device.arch, stock, patched, folder)
        calls, cases = [], []
        for number, (tokens, ranks) in enumerate(plan.shapes()):
            made = make_case(plan, tokens, ranks, device)
            cases.append(folder / f"case-{number}")
            cases[-1].write_bytes(made[1])
            calls.append(made[0])
        step(f"running {len(cases)} calls")
        lines = _drive([programs.driver, programs.stock, programs.patched, *cases])
        copy_tbs = read_copy(lines[0])
        rows = tuple(
            read_row(line, **numbers) for line, numbers in zip(lines[1:], calls, strict=True)
        )
        result = KernelComparison(
            device.name, device.arch, copy_tbs, rows, round(time.monotonic() - started, 1)
        )
        result.write(out / "bench-kernel.json")
    return result


def make_case(
    plan: KernelPlan, tokens: int, ranks: int, device: Device
) -> tuple[dict[str, int], bytes]:
    """Route `tokens` for the first of `ranks` ranks; return the call's numbers and the case."""
    local = plan.experts // ranks
    tile = kernel_plan.tile_of(plan, tokens, ranks)
    workset = route(random_slots(tokens, plan.top_k, plan.experts, SEED), local, tile)
    rows = int(workset.valid.sum())
    moved = kernel_plan.bytes_moved(rows, plan.inner, len(workset.limits))
    sets = kernel_plan.sets_of_buffers(
        _buffer_bytes(workset, plan.inner), device.l2_bytes, device.memory_bytes
    )
    count = kernel_plan.launches(plan, moved, sets, copy_tbs=4.0)
    numbers = {
        "tokens": tokens, "ranks": ranks, "tile": tile, "rows": rows, "moved": moved, "sets": sets,
    }  # fmt: skip
    return numbers, kernel_plan.case_bytes(plan, workset, sets, count)


def _buffer_bytes(workset: Workset, inner: int) -> int:
    return max(kernel_plan.bytes_moved(workset.rows, inner, 0), 1)


def read_copy(line: str) -> float:
    """Read the copy's TB/s from the driver's first line.

    Raises:
        SuiteVoidError: it has none.
    """
    try:
        value = float(json.loads(line)["copy_tbs"])
    except (ValueError, KeyError, TypeError) as broken:
        raise SuiteVoidError(f"the driver: expected a device, found {line!r}") from broken
    if value <= 0:
        raise SuiteVoidError(f"the driver: expected a copy's speed above 0, found {value}")
    return value


def _drive(command: list[Path]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_SECONDS)
    except subprocess.TimeoutExpired as late:
        raise SuiteVoidError(f"the driver did not end within {DRIVER_SECONDS} s") from late
    lines = done.stdout.splitlines()
    expected = len(command) - 2
    if done.returncode != 0 or len(lines) != expected:
        reason = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise SuiteVoidError(
            f"the driver: expected {expected} results, found {len(lines)} and status "
            f"{done.returncode}: {reason}"
        )
    return lines
