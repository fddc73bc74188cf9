"""What each patch of the FlashInfer series changes, and when the release's kernel still runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.bench.kernel_routing import Workset, route
from headrace.bench.kernel_source import KERNELS
from tests.kernel import toolchain
from tests.kernel.activation import (
    Call,
    differences,
    make_call,
    run,
    waits_of_one_pass,
    with_gate,
)
from tests.kernel.cases import CASES, expert_parallel

STOCK_REASONS = {
    "test_a_slot_that_routes_elsewhere_costs_nothing": r"waits grew from \d+ to \d+",
    "test_a_block_of_columns_needs_no_barrier": r"expected no barrier, found \d+",
    "test_the_grid_is_what_the_device_holds": r"expected at most 12 blocks, found \d+",
    "test_the_plain_gate_has_a_kernel_of_its_own": r"found activationDeepSeekKernel for both",
    "test_the_module_exports_what_the_release_does_not": r"exports no trtllm_moe_activation_patch",
}


@pytest.fixture(scope="session")
def tree() -> Path:
    return toolchain.patched_tree()


def with_remote_tokens(call: Call, tokens: int) -> Call:
    """Return the call with further tokens, all of whose experts are on other ranks."""
    workset = call.workset
    remote = np.full((tokens, workset.permuted.shape[1]), -1, np.int32)
    permuted = np.concatenate([workset.permuted, remote])
    return replace(call, workset=Workset(permuted, workset.limits, workset.experts, workset.tile))


def test_a_slot_that_routes_elsewhere_costs_nothing(tree: Path) -> None:
    program = toolchain.runner(tree)
    call = expert_parallel(32, 1)
    few, many = run(program, call), run(program, with_remote_tokens(call, 7 * 32))
    assert not differences(many, few)
    assert many.launch.waits == few.launch.waits, (
        f"waits grew from {few.launch.waits} to {many.launch.waits}"
    )


def test_a_block_of_columns_needs_no_barrier(tree: Path) -> None:
    launch = run(toolchain.runner(tree), expert_parallel(8, 8)).launch
    assert launch.barriers == 0, f"expected no barrier, found {launch.barriers}"


def test_the_grid_is_what_the_device_holds(tree: Path) -> None:
    call = replace(expert_parallel(256, 8), multiprocessors=3, blocks_each=4)
    launch = run(toolchain.runner(tree), call).launch
    assert launch.blocks <= 12, f"expected at most 12 blocks, found {launch.blocks}"


@pytest.mark.parametrize("name", ["tile-10", "tile-64", "width-of-the-post", "6-column-blocks"])
def test_each_group_of_rows_is_done_once(name: str, ours: Path) -> None:
    call = CASES[name]()
    assert run(ours, call).launch.waits == waits_of_one_pass(call)


def test_the_plain_gate_has_a_kernel_of_its_own(tree: Path) -> None:
    program, call = toolchain.runner(tree), expert_parallel(8, 8)
    plain, gated = (run(program, each).launch.kernel for each in (call, with_gate(call, "abl")))
    assert plain != gated, f"expected two kernels, found {plain} for both"


def test_the_module_exports_what_the_release_does_not(tree: Path) -> None:
    # That it is in the object is for the compile gate, which has the compiler for it.
    name = "trtllm_moe_activation_patch_id"
    source = (tree / KERNELS).read_text()
    assert f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}," in source, f"exports no {name}"


def test_few_slots_start_few_blocks(ours: Path) -> None:
    call = replace(expert_parallel(1, 8), multiprocessors=148, blocks_each=16)
    # As many as slots, to an odd number.
    assert run(ours, call).launch.blocks <= 9


@pytest.mark.parametrize("tile", [8, 16, 32])
def test_few_tokens_keep_no_block_busier_than_another(tile: int, ours: Path) -> None:
    # Two tokens of eight experts each, and 16 experts: no tile has tokens but in its first group.
    slots = np.arange(16, dtype=np.int32).reshape(2, 8)
    call = make_call(route(slots, 16, tile), 512)
    launch = run(ours, replace(call, multiprocessors=148, blocks_each=12)).launch
    assert launch.busiest == waits_of_one_pass(call) // 16


@pytest.mark.parametrize("pdl", [True, False])
def test_the_kernel_waits_for_the_one_before_it(pdl: bool, ours: Path) -> None:
    launch = run(ours, replace(expert_parallel(8, 8), pdl=pdl)).launch
    assert (launch.pdl, launch.synchronized) == (pdl, pdl)


def without_metadata() -> Call:
    return replace(expert_parallel(40, 8), has_workset=False)


def half_precision() -> Call:
    call = expert_parallel(8, 8)
    payload = np.random.default_rng(2).uniform(-9, 9, call.payload.shape).astype(np.float16)
    return replace(call, payload=payload.view(np.uint8), element="fp16")


def not_at_16_bytes() -> Call:
    return replace(expert_parallel(40, 8), misalign=8)


UNSERVED: dict[str, Callable[[], Call]] = {
    "no-metadata": without_metadata,
    "another-element-type": half_precision,
    "rows-not-at-16-bytes": not_at_16_bytes,
}


@pytest.mark.parametrize("name", UNSERVED)
def test_what_the_workset_cannot_serve_stays_with_the_release(
    name: str, stock: Path, ours: Path
) -> None:
    call = UNSERVED[name]()
    found = run(ours, call)
    assert found.launch.kernel == "activationDeepSeekKernel"
    assert not differences(found, run(stock, call))


def test_a_block_that_ends_early_stays_with_the_release(ours: Path) -> None:
    call = make_call(expert_parallel(8, 8).workset, 2 * 192)
    assert run(ours, call).launch.kernel == "activationDeepSeekKernel"
