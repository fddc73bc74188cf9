"""The record of FlashInfer's module: what is read of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.kernel_module import RECORD, ModuleRecord, read_record
from headrace.errors import KernelModuleError

JIT: dict[str, Any] = {
    "module": "fused_moe_trtllm_sm100", "mode": "jit", "path": None, "sha256": None,
    "symbol": "__tvm_ffi_trtllm_moe_activation_patch_id", "series_sha256": "5" * 64,
    "sources": {"flashinfer/data/csrc/kernel.cu": "c" * 64},
}  # fmt: skip
AOT = JIT | {"mode": "aot", "path": "flashinfer/data/aot/m/m.so", "sha256": "a" * 64}


def written(site: Path, text: str) -> Path:
    """Write the record of `site`; return its file."""
    file = site / RECORD
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("says", [JIT, AOT], ids=["jit", "aot"])
def test_a_record_is_read(says: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path, json.dumps(says))
    assert read_record(tmp_path) == ModuleRecord(**says)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in AOT.items() if name != key}


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("{", "expected JSON, found Expecting property name"),
        ("\x00\xff", "expected JSON"),
        ([], "expected the keys module, mode, .*, found list"),
        ({}, "expected the keys .*, found none"),
        (without("symbol"), "expected the keys .*, found mode, module, path"),
        (AOT | {"more": 1}, "expected the keys .*, found mode, module, more,"),
        (AOT | {"mode": "AOT"}, "expected mode aot or jit, found 'AOT'"),
        (AOT | {"module": ""}, "expected module to be a name, found ''"),
        (AOT | {"module": "../m"}, "expected module to be a name"),
        (AOT | {"symbol": None}, "expected symbol to be a name, found None"),
        (AOT | {"series_sha256": "5" * 63}, "expected series_sha256 to be 64 hexadecimal digits"),
        (AOT | {"sha256": "A" * 64}, "expected sha256 to be 64 hexadecimal digits"),
        (AOT | {"sha256": None}, "expected sha256 to be 64 hexadecimal digits, found None"),
        (AOT | {"path": None}, "expected a path below site-packages in mode aot, found None"),
        (AOT | {"path": "/m.so"}, "expected a path below site-packages in mode aot, found '/m.so'"),
        (AOT | {"path": "a/../../m.so"}, "expected a path below site-packages"),
        (JIT | {"path": "m.so"}, "expected no path and no sha256 in mode jit, found m.so"),
        (JIT | {"sha256": "a" * 64}, "expected no path and no sha256 in mode jit, found a sha256"),
        (JIT | {"sources": {}}, "expected the sources of the series, found {}"),
        (JIT | {"sources": [1]}, r"expected the sources of the series, found \[1\]"),
        (JIT | {"sources": {"/etc/x": "c" * 64}}, "expected sources as paths below"),
        (JIT | {"sources": {"a.cu": "c"}}, "expected sources as paths below .*, found 'a.cu'"),
        (JIT | {"sources": {"a\0.cu": "c" * 64}}, r"expected sources as paths .*, found 'a\\x00"),
        (AOT | {"path": "\ud800.so"}, r"expected a path below site-packages .*, found '\\ud800"),
        ("[" * 100_000, "expected JSON, found maximum recursion depth"),
    ],
)
def test_a_broken_record_is_one_line(says: object, expected: str, tmp_path: Path) -> None:
    file = written(tmp_path, says if isinstance(says, str) else json.dumps(says))
    with pytest.raises(KernelModuleError, match=expected) as refused:
        read_record(tmp_path)
    assert str(refused.value).startswith(f"{file}: expected ")
    assert "\n" not in str(refused.value)


def test_no_record_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KernelModuleError, match=r"found No such file or directory; take an image"):
        read_record(tmp_path)
