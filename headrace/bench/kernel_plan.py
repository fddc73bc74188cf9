"""Which calls of the activation the kernel bench times, and how many bytes each has to move."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.bench.kernel_routing import Workset

BLOCK = 128
# FlashInfer's tiles for this kernel.
SMALLEST_TILE, LARGEST_TILE = 8, 128
MOST_SETS = 64


@dataclass(frozen=True)
class KernelPlan:
    """What is timed.

    Attributes:
        tokens: of the batch that all ranks of the experts gathered.
        ranks: over which the experts are spread; one of them is timed.
        inner: width of a row that the first expert GEMM writes, twice the second's input.
        rounds: pairs of timings for each call.
        seconds: that one call's timings shall take, about.
    """

    tokens: tuple[int, ...] = (8, 64, 256, 1024, 4096, 8192, 16384)
    ranks: tuple[int, ...] = (1, 8)
    experts: int = 256
    top_k: int = 8
    inner: int = 4096
    rounds: int = 11
    seconds: float = 2.0

    def shapes(self) -> list[tuple[int, int]]:
        """Return (tokens, ranks) in the order in which they are timed."""
        return [(tokens, ranks) for ranks in self.ranks for tokens in self.tokens]


QUICK_KERNEL = KernelPlan(tokens=(8, 8192), rounds=3, seconds=0.2)


def tile_of(plan: KernelPlan, tokens: int, ranks: int) -> int:
    """Return the rows of a tile that FlashInfer takes for so many tokens unless it is tuned."""
    # As its selectDefaultTileN: all ranks' slots over one rank's experts, the power of two above
    # that, and of the tiles around it the smallest.
    mean = max(tokens * plan.top_k / (plan.experts // ranks), 1.0)
    centre = min(max(1 << math.ceil(math.log2(mean)), SMALLEST_TILE), LARGEST_TILE)
    return max(centre // 2, SMALLEST_TILE)


def bytes_moved(rows: int, inner: int, tiles: int) -> int:
    """Return the least that must move: fp8 codes, a scale for 128 of them, a word a tile."""
    codes = rows * (inner + inner // 2)
    scales = rows * (inner // BLOCK + inner // 2 // BLOCK) * 4
    return codes + scales + tiles * 4 + 8


def sets_of_buffers(set_bytes: int, l2_bytes: int, memory_bytes: int) -> int:
    """Return how many sets to go through in turn, so that no launch finds its input in L2.

    Raises:
        ValueError: not even two sets fit in the half of the device's memory.
    """
    fitting = memory_bytes // 2 // set_bytes
    if fitting < 2:
        raise ValueError(f"{set_bytes} bytes of buffers, twice, in half of {memory_bytes}")
    wanted = math.ceil(3 * l2_bytes / set_bytes) + 1
    return max(2, min(wanted, fitting, MOST_SETS))


def launches(plan: KernelPlan, moved: int, sets: int, copy_tbs: float) -> int:
    """Return launches of one timing, whole turns through the sets, from a guess of the speed."""
    guess = max(moved / (copy_tbs * 1e12) * 4, 3e-6)
    wanted = plan.seconds / (2 * plan.rounds) / guess
    turns = max(1, min(round(wanted / sets), 2000 // sets))
    return turns * sets


def case_bytes(plan: KernelPlan, workset: Workset, sets: int, launch_count: int) -> bytes:
    """Return what kernel_driver.cu reads for one call."""
    header = struct.pack(
        "8i", *workset.permuted.shape, plan.inner, workset.tile, len(workset.limits),
        plan.rounds, launch_count, sets,
    )  # fmt: skip
    arrays = (workset.permuted, workset.limits, workset.experts)
    return header + b"".join(array.tobytes() for array in arrays)
