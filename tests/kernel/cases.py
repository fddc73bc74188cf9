"""The calls that the numerics are asked: routing, widths and values of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from headrace.bench.kernel_routing import Ints, random_slots, route
from tests.kernel.activation import BLOCK, Call, make_call, with_gate

# FlashInfer's own tiles for this kernel are 8 to 128; its routing allows any number of rows.
TILES = (1, 6, 8, 10, 16, 24, 32, 48, 64, 96, 128, 192, 256)
GATES = ("a", "b", "l", "ab", "al", "bl", "abl")


def expert_parallel(
    tokens: int, ranks: int, inner: int = 512, tile: int = 16, local: int = 8, seed: int = 3
) -> Call:
    """Return a call of one of `ranks` ranks, with eight experts for each token."""
    slots = random_slots(tokens, 8, local * ranks, seed)
    return make_call(route(slots, local, tile), inner, seed)


def slots_for_counts(counts: list[int]) -> Ints:
    """Return slots, one a token, that give expert e exactly `counts[e]` rows, interleaved."""
    slots = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(len(slots)).permutation(slots).astype(np.int32)[:, None]


def edges_of_a_tile(tile: int) -> Call:
    """Return a call whose experts have 0, 1, tile - 1, tile and tile + 1 rows, and 2 tile + 1."""
    counts = [0, 1, max(tile - 1, 0), tile, 0, tile + 1, 2 * tile + 1, 0]
    return make_call(route(slots_for_counts(counts), len(counts), tile), 256, seed=tile)


def zero_blocks() -> Call:
    """Return a call with blocks of which the linear half, the gate, or both are zero."""
    call = expert_parallel(40, 1, inner=1024)
    payload = call.payload.copy()
    payload[0::3, :BLOCK] = 0
    payload[1::3, 512 : 512 + BLOCK] = 0x80  # -0
    payload[2::3, :] = 0
    return replace(call, payload=np.where(call.workset.valid[:, None], payload, call.payload))


def scaled(low: float, high: float) -> Call:
    """Return a call whose scales lie between `low` and `high`."""
    call = expert_parallel(40, 1, inner=1024)
    scales = np.random.default_rng(8).uniform(low, high, call.scales.shape).astype(np.float32)
    return replace(call, scales=np.where(np.isnan(call.scales), np.nan, scales).astype(np.float32))


def not_numbers() -> Call:
    """Return a call with NaNs among the codes of its tokens."""
    call = expert_parallel(40, 1)
    payload = call.payload.copy()
    payload[::5, ::7] = 0x7F
    payload[4, :] = 0x7F
    return replace(call, payload=payload)


def with_all_gates(names: str) -> Call:
    """Return one rank's call with some of the SwiGLU controls; see `with_gate`."""
    return with_gate(expert_parallel(40, 8), names)


def on_device(tokens: int, multiprocessors: int, blocks_each: int) -> Call:
    """Return a call on a device that holds so many blocks at a time."""
    call = expert_parallel(tokens, 8)
    return replace(call, multiprocessors=multiprocessors, blocks_each=blocks_each)


def nothing_local() -> Call:
    """Return the call of a rank to which no token goes."""
    return make_call(route(random_slots(5, 8, 64, 3) + 8, 8, 8), 512)


def without_pdl() -> Call:
    """Return a call that starts after the kernel before it has ended."""
    return replace(expert_parallel(40, 8), pdl=False)


CASES: dict[str, Callable[[], Call]] = {
    **{
        f"ep{ranks}-{tokens}-tokens": partial(expert_parallel, tokens, ranks)
        for ranks in (1, 8)
        for tokens in (1, 2, 7, 33, 256)
    },
    "ep8-4000-tokens": partial(expert_parallel, 4000, 8, inner=256, tile=64),
    "ep1-1000-tokens": partial(expert_parallel, 1000, 1, inner=256, tile=128),
    "width-of-the-post": partial(expert_parallel, 48, 8, inner=4096, tile=8),
    **{
        f"{blocks}-column-blocks": partial(expert_parallel, 9, 1, inner=2 * BLOCK * blocks)
        for blocks in (1, 3, 4, 5, 6)
    },
    **{f"tile-{tile}": partial(edges_of_a_tile, tile) for tile in TILES},
    "nothing-local": nothing_local,
    "zero-blocks": zero_blocks,
    "large-scales": partial(scaled, 1e3, 1e5),
    "overflow": partial(scaled, 1e17, 1e18),
    "small-scales": partial(scaled, 1e-15, 1e-13),
    "least-scale": partial(scaled, 1e-21, 1e-19),
    "denormal-scales": partial(scaled, 1e-42, 1e-40),
    "not-numbers": not_numbers,
    **{f"gate-{names}": partial(with_all_gates, names) for names in GATES},
    "gate-of-the-last-rows": partial(with_gate, edges_of_a_tile(10), "abl"),
    "without-pdl": without_pdl,
    "one-resident-block": partial(on_device, 40, 1, 1),
    "more-resident-blocks-than-work": partial(on_device, 4, 148, 16),
}

# Where the exact value is no number, or rounds to another one in single precision.
BEYOND_THE_REFERENCE = ("overflow", "not-numbers", "least-scale", "denormal-scales")
