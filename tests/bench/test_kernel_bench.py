"""The kernel bench as far as it needs no GPU: its plan, its device, its verdict, and a dry run."""

from __future__ import annotations

import json
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.bench import kernel, kernel_device
from headrace.bench.kernel import compare_kernels, make_case
from headrace.bench.kernel_build import find_nvcc
from headrace.bench.kernel_device import Device, find_device
from headrace.bench.kernel_plan import (
    QUICK_KERNEL,
    KernelPlan,
    bytes_moved,
    launches,
    sets_of_buffers,
    tile_of,
)
from headrace.bench.kernel_result import (
    TABLE_HEAD,
    KernelComparison,
    KernelRow,
    kernel_table_rows,
    raise_unless_same_bits,
    read_row,
)
from headrace.errors import ConfigurationError, MachineError, SuiteFailedError, SuiteVoidError
from tests.suites.sites import headrace

B300 = Device("NVIDIA B300", "103a", 126 << 20, 288 << 30)
ROW = KernelRow(8192, 8, 64, 9315, 59_020_464, 7, 230.0, 10.0, 0, 0)


def test_the_floor_of_the_post_s_shape_is_59_megabytes() -> None:
    assert bytes_moved(9315, 4096, 154) == 59_020_464


@pytest.mark.parametrize(
    ("tokens", "ranks", "tile"),
    [
        (8, 1, 8),
        (256, 1, 8),
        (1024, 1, 16),
        (1025, 1, 32),
        (8192, 1, 64),
        (8, 8, 8),
        (64, 8, 8),
        (256, 8, 32),
        (8192, 8, 64),
    ],
)
def test_the_tile_is_the_one_that_flashinfer_takes(tokens: int, ranks: int, tile: int) -> None:
    assert tile_of(KernelPlan(), tokens, ranks) == tile


def test_no_launch_finds_its_input_in_the_cache() -> None:
    for set_bytes in (1000, 60 << 20, 900 << 20):
        sets = sets_of_buffers(set_bytes, B300.l2_bytes, B300.memory_bytes)
        assert sets >= 2
        assert (sets - 1) * set_bytes >= 3 * B300.l2_bytes or sets == 64
    with pytest.raises(ValueError, match="twice"):
        sets_of_buffers(60 << 30, B300.l2_bytes, 80 << 30)


def test_every_set_is_used_equally_often() -> None:
    for sets in (2, 7, 64):
        assert launches(KernelPlan(), 59_000_000, sets, 4.0) % sets == 0


def test_all_calls_fit_in_four_minutes() -> None:
    plan = KernelPlan()
    assert len(plan.shapes()) * plan.seconds < 60
    assert kernel.DRIVER_SECONDS < 240


def test_a_case_holds_what_the_driver_reads() -> None:
    numbers, case = make_case(QUICK_KERNEL, 64, 8, B300)
    tokens, top_k, inner, tile, tiles, rounds, count, sets = struct.unpack_from("8i", case)
    assert (tokens, top_k, inner, tile, rounds) == (64, 8, 4096, numbers["tile"], 3)
    assert len(case) == 4 * (8 + tokens * top_k + 2 * tiles)
    assert count % sets == 0
    # A rank of eight has about an eighth of the slots.
    assert 32 <= numbers["rows"] <= 96


def test_equal_bits_pass() -> None:
    raise_unless_same_bits([ROW])


@pytest.mark.parametrize("field", ["payload_differences", "scale_differences"])
def test_one_word_that_differs_fails(field: str) -> None:
    with pytest.raises(SuiteFailedError, match="1 of 2 calls"):
        raise_unless_same_bits([ROW, replace(ROW, **{field: 1})])


def test_nothing_compared_is_void() -> None:
    with pytest.raises(SuiteVoidError):
        raise_unless_same_bits([])


def test_the_table_says_how_much_of_a_copy_is_reached() -> None:
    result = KernelComparison("NVIDIA B300", "103a", 6.0, (ROW,), 1.0)
    (cells,) = kernel_table_rows(result)
    assert len(cells) == len(TABLE_HEAD)
    assert cells[3:] == ("230.0", "10.0", "23.00x", "5.90", "98%", "equal")


def test_a_line_that_is_no_result_is_void() -> None:
    numbers = {"tokens": 8, "ranks": 1, "tile": 8, "rows": 64, "moved": 1, "sets": 2}
    with pytest.raises(SuiteVoidError, match="expected a call's result"):
        read_row('{"stock_us": []}', **numbers)


def test_without_a_driver_it_says_so_in_one_line() -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver")
    done = headrace("bench", "kernel")
    assert done.returncode == MachineError.exit_code
    (line,) = done.stderr.splitlines()
    assert "needs an NVIDIA GPU" in line and "found no driver" in line


@pytest.mark.parametrize("option", ["--stock", "--patched"])
def test_a_named_tree_that_is_not_there_is_told_before_the_missing_gpu(
    tmp_path: Path, option: str
) -> None:
    done = headrace("bench", "kernel", option, tmp_path / "nope", "--out", tmp_path / "out")
    assert done.returncode == ConfigurationError.exit_code
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"headrace: {tmp_path}/nope/") and "FlashInfer's kernels" in line


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a maker of libcuda.so.1 stand-ins with one GPU of a capability, or none."""

    def make(major: int, minor: int, count: int = 1, status: int = 0) -> str:
        folder = tmp_path_factory.mktemp("cuda")
        library = folder / "libcuda.so.1"
        source = f"""
            #include <string.h>
            int cuInit(int flags) {{ return {status}; }}
            int cuDeviceGetCount(int* n) {{ *n = {count}; return 0; }}
            int cuDeviceGet(int* d, int i) {{ *d = i; return 0; }}
            int cuDeviceGetName(char* s, int n, int d) {{ strcpy(s, "Stand-in"); return 0; }}
            int cuDeviceTotalMem_v2(unsigned long* m, int d) {{ *m = 1ul << 37; return 0; }}
            int cuDeviceGetAttribute(int* v, int a, int d) {{
                *v = a == 75 ? {major} : a == 76 ? {minor} : a == 38 ? 50 << 20 : -1; return 0;
            }}"""
        (folder / "cuda.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", folder / "cuda.c", "-o", library], check=True)
        return str(library)

    return make


def test_the_device_is_named_as_its_compiler_does(cuda: Callable[..., str]) -> None:
    assert find_device(cuda(10, 3)) == Device("Stand-in", "103a", 50 << 20, 1 << 37)


def test_another_gpu_is_refused(cuda: Callable[..., str]) -> None:
    with pytest.raises(MachineError, match=r"found Stand-in \(SM120\)"):
        find_device(cuda(12, 0))
    with pytest.raises(MachineError, match="found a driver and no GPU"):
        find_device(cuda(10, 3, count=0))
    with pytest.raises(MachineError, match="found a driver and no GPU"):
        find_device(cuda(10, 3, status=100))
    with pytest.raises(MachineError, match=r"CUDA error 802 \(cuInit\)"):
        find_device(cuda(10, 3, status=802))


# Writes the driver beside it as whatever it is asked to compile.
NVCC = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
cp "$(dirname "$0")/driver" "$2"
"""


def dry_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cuda: Callable[..., str], driver: str
) -> KernelComparison:
    """Compare into folder/out with that driver, which stands in for the compiled one."""
    nvcc = folder / "nvcc"
    for path, text in ((nvcc, NVCC), (folder / "driver", f"#!{sys.executable}\n{driver}")):
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    device = find_device(cuda(9, 0))
    monkeypatch.setattr(kernel, "find_device", lambda: device)
    monkeypatch.setattr("headrace.bench.kernel_build.activation_text", lambda tree: "")
    return compare_kernels(
        Path("stock"), Path("patched"), QUICK_KERNEL, folder / "out", lambda what: None, nvcc=nvcc
    )


def test_a_dry_run_writes_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: Callable[..., str]
) -> None:
    times = {"stock_us": [3.0, 2.0, 9.0], "patched_us": [1.0]}
    line = json.dumps({"payload_differences": 0, "scale_differences": 2, **times})
    driver = f"""import sys
print({json.dumps({"copy_tbs": 4.0})!r})
for case in sys.argv[3:]:
    print({line!r})
"""
    result = dry_run(tmp_path, monkeypatch, cuda, driver)
    assert [(row.tokens, row.ranks) for row in result.rows] == QUICK_KERNEL.shapes()
    assert {(row.stock_us, row.patched_us, row.scale_differences) for row in result.rows} == {
        (3.0, 1.0, 2)
    }
    written = json.loads((tmp_path / "out" / "bench-kernel.json").read_text())
    assert written["arch"] == "90a"


def test_a_driver_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: Callable[..., str]
) -> None:
    with pytest.raises(SuiteVoidError):
        dry_run(tmp_path, monkeypatch, cuda, "raise SystemExit('no GPU')\n")
    assert not (tmp_path / "out").exists()


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="--nvcc /nowhere/nvcc"):
        find_nvcc(Path("/nowhere/nvcc"), tmp_path)


def test_every_architecture_of_the_bench_is_one_that_the_gate_compiles() -> None:
    from tests.kernel.compile_gate import UNITS

    assert set(kernel_device.ARCHITECTURES.values()) == {arch for _, arch in UNITS}
