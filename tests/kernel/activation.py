"""Calls of the activation on the CPU, and what they must give."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.bench.kernel_routing import Workset

UNTOUCHED = 0xA5
BLOCK = 128
E4M3_MAX = 448.0
RUN_SECONDS = 120
SEED = 1

Order = Literal["forward", "backward", "shuffled"]
ORDERS: tuple[Order, ...] = ("forward", "backward", "shuffled")
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Call:
    """One call of `activation::run`.

    Attributes:
        payload: fp8 codes [rows, inner].
        scales: float32 [columns of scales, rows], as the kernel stores them.
        alpha, beta, limit: float32 [experts] for the gated variants, or none.
        has_workset: whether the caller knows the workset; without, the release's kernel must run.
    """

    workset: Workset
    payload: Bytes
    scales: Floats
    alpha: Floats | None = None
    beta: Floats | None = None
    limit: Floats | None = None
    has_workset: bool = True
    pdl: bool = True
    element: Literal["e4m3", "fp16", "bf16"] = "e4m3"
    misalign: int = 0
    multiprocessors: int = 3
    blocks_each: int = 4

    @property
    def inner(self) -> int:
        return self.payload.shape[1] // (1 if self.element == "e4m3" else 2)


@dataclass(frozen=True)
class Launch:
    """One kernel that ran.

    Attributes:
        pdl: launched while the kernel before it may still run.
        synchronized: some thread waited for that kernel's end.
        barriers: of whole blocks.
        waits: of single threads, at barriers and shuffles.
        left_behind: barriers that some threads of the block had left behind.
        busiest: waits of the block that has most.
    """

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    pdl: bool
    synchronized: bool
    barriers: int
    waits: int
    left_behind: int
    busiest: int

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Result:
    """What a call left behind: fp8 codes [rows, inner / 2] and float32 bits [columns, rows]."""

    payload: Bytes
    scales: NDArray[np.uint32]
    launch: Launch = field(compare=False)


class RunFailedError(Exception):
    """The program refused the call, crashed, or did not end."""


def make_call(workset: Workset, inner: int, seed: int = 0, spread: float = 0.05) -> Call:
    """Return a call over random codes; padding rows and their scales hold NaNs."""
    generator = np.random.default_rng(seed)
    payload = generator.integers(0, 256, (workset.rows, inner), np.uint8)
    payload[payload & 0x7F == 0x7F] = 0
    columns = inner // 2 // BLOCK + -(-inner // 2 // BLOCK)
    scales = generator.uniform(spread / 50, spread, (columns, workset.rows)).astype(np.float32)
    payload[~workset.valid] = 0x7F
    scales[:, ~workset.valid] = np.nan
    return Call(workset, payload, scales)


def run(program: Path, call: Call, order: Order = "forward", mutant: int = 0) -> Result:
    """Run a call and return what it wrote; bytes that it left alone are UNTOUCHED.

    Args:
        mutant: which wrong version runs, of a program that holds several; 0 for the right one.

    Raises:
        RunFailedError: it did not end well.
    """
    workset = call.workset
    columns = call.scales.shape[0]
    experts = int(workset.experts.max(initial=0)) + 1
    gates = [call.alpha, call.beta, call.limit]
    header = struct.pack(
        "18i", *workset.permuted.shape, call.inner, workset.tile, len(workset.limits), experts,
        columns, call.has_workset, *(gate is not None for gate in gates), call.pdl,
        ORDERS.index(order), SEED, call.multiprocessors, call.blocks_each,
        ("e4m3", "fp16", "bf16").index(call.element), call.misalign,
    )  # fmt: skip
    none = np.zeros(experts, np.float32)
    arrays = [workset.permuted, workset.limits, workset.experts, call.payload, call.scales]
    arrays += [none if gate is None else gate[:experts] for gate in gates]
    with tempfile.TemporaryDirectory() as folder:
        case, result = Path(folder, "case"), Path(folder, "result")
        case.write_bytes(header + b"".join(np.ascontiguousarray(a).tobytes() for a in arrays))
        try:
            done = subprocess.run(
                [program, case, result, str(mutant)],
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS,
            )
        except subprocess.TimeoutExpired as late:
            raise RunFailedError(f"no end within {RUN_SECONDS} s") from late
        if done.returncode != 0:
            raise RunFailedError(f"status {done.returncode}: {done.stderr.strip()}")
        raw = result.read_bytes()
    width = call.payload.shape[1] // 2
    split = workset.rows * width
    launches = [_launch(line) for line in done.stdout.splitlines()]
    if len(launches) != 1:
        raise RunFailedError(f"expected one launch, found {len(launches)}")
    return Result(
        np.frombuffer(raw[:split], np.uint8).reshape(workset.rows, width),
        np.frombuffer(raw[split:], np.uint32).reshape(-(-call.inner // 2 // BLOCK), workset.rows),
        launches[0],
    )


def differences(found: Result, wanted: Result) -> str:
    """Say in how many bytes two results differ; "" if in none."""
    payload = int((found.payload != wanted.payload).sum())
    scales = int((found.scales != wanted.scales).sum())
    if not payload and not scales:
        return ""
    return f"{payload} of {found.payload.size} codes and {scales} of {found.scales.size} scales"


def stray_writes(call: Call, result: Result) -> int:
    """Count what was written outside the valid rows."""
    padding = ~call.workset.valid
    untouched = np.frombuffer(bytes([UNTOUCHED]) * 4, np.uint32)[0]
    return int(
        (result.payload[padding] != UNTOUCHED).sum()
        + (result.scales[:, padding] != untouched).sum()
    )


def workset_kernel(call: Call) -> str:
    """Return the name of the kernel that the workset's launch takes for this call's gate."""
    has_gate = call.alpha is not None or call.beta is not None or call.limit is not None
    return f"activationDeepSeekWorkset{'Gate' if has_gate else ''}Kernel"


def waits_of_one_pass(call: Call) -> int:
    """Return how often threads wait if each group of rows with a token in it is done once.

    A warp has four rows and 128 columns, and every lane of it waits at three shuffles.
    """
    workset = call.workset
    tokens = workset.valid.reshape(-1, workset.tile).sum(axis=1)
    return 3 * 32 * int((-(-tokens // 4)).sum()) * (call.inner // 2 // BLOCK)


def reference(call: Call) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return activations [rows, inner / 2] and scales [rows, columns] in double precision."""
    workset, half = call.workset, call.inner // 2
    x = torch.from_numpy(call.payload.copy()).view(torch.float8_e4m3fn).double().numpy()
    scales = np.repeat(call.scales.T.astype(np.float64), BLOCK, axis=1)
    linear, glu = x[:, :half] * scales[:, :half], x[:, half:] * scales[:, half:]
    expert = np.repeat(workset.experts, workset.tile)
    if call.limit is not None:
        limit = call.limit.astype(np.float64)[expert][:, None]
        glu, linear = np.minimum(glu, limit), np.clip(linear, -limit, limit)
    alpha = 1.0 if call.alpha is None else call.alpha.astype(np.float64)[expert][:, None]
    beta = 0.0 if call.beta is None else call.beta.astype(np.float64)[expert][:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        out = glu / (1.0 + np.exp(-alpha * glu)) * (linear + beta)
    highest = np.abs(out).reshape(workset.rows, half // BLOCK, BLOCK).max(axis=2)
    return out, np.maximum(highest / E4M3_MAX, np.finfo(np.float32).tiny)


def reference_problems(call: Call, result: Result) -> list[str]:
    """Compare the valid rows with double precision: scales to 1e-6, codes to one rounding."""
    out, scales = reference(call)
    valid = call.workset.valid
    found = result.scales.view(np.float32).T[valid].astype(np.float64)
    problems = []
    worst = float(np.abs(found / scales[valid] - 1).max(initial=0))
    if not worst <= 1e-6:
        problems.append(f"scales are off by {worst:.1e}")
    exact = out[valid] / np.repeat(scales[valid], BLOCK, axis=1)
    codes = torch.from_numpy(result.payload[valid].copy()).view(torch.float8_e4m3fn)
    given = codes.double().numpy()
    # Half a step of e4m3: 2^-4 of the value, and 2^-10 below its normal numbers. A hair more,
    # since the division itself rounds in single precision.
    allowed = np.maximum(np.abs(exact) * 2.0**-4, 2.0**-10) * (1 + 1e-5)
    wrong = int((~(np.abs(given - exact) <= allowed)).sum())
    if wrong:
        problems.append(f"{wrong} of {given.size} codes are no rounding of the exact value")
    return problems


def with_gate(call: Call, names: str, seed: int = 5) -> Call:
    """Return the call with some of "alpha", "beta", "limit" (initials, e.g. "al")."""
    generator = np.random.default_rng(seed)
    count = int(call.workset.experts.max(initial=0)) + 1

    def draw(low: float, high: float) -> Floats:
        return generator.uniform(low, high, count).astype(np.float32)

    return replace(
        call,
        alpha=draw(0.5, 2) if "a" in names else None,
        beta=draw(-1, 1) if "b" in names else None,
        limit=draw(0.5, 7) if "l" in names else None,
    )


_LINE = re.compile(r"(\S+) (\d+) (\d+) (\d+) (\d+) (\d) (\d) (\d+) (\d+) (\d+) (\d+)")


def _launch(line: str) -> Launch:
    match = _LINE.fullmatch(line)
    if match is None:
        raise RunFailedError(f"expected a launch, found {line!r}")
    x, y, z, threads, pdl, synchronized, *counts = map(int, match.groups()[1:])
    return Launch(match[1], (x, y, z), threads, bool(pdl), bool(synchronized), *counts)
