"""One call of nvcc in the compile gate: what it made, what it said, and when it is given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bench.kernel_source import KERNELS
from tests.kernel import compile_gate
from tests.kernel.compile_gate import Compiled, compiled


def gate_with(folder: Path, script: str) -> Path:
    """A gate whose nvcc is a shell script; `made` names the object that it is asked for."""
    nvcc = folder / "toolchain/nvidia/cu13/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\nfor made; do :; done\n{script}\n")
    nvcc.chmod(0o755)
    (folder / "objects").mkdir()
    return folder


def test_an_object_is_there_with_what_it_cost(tmp_path: Path) -> None:
    script = 'n=0; while [ $n -lt 20000 ]; do n=$((n + 1)); done; echo object > "$made"'
    each = compiled(tmp_path, gate_with(tmp_path, script), KERNELS, "103a")
    assert isinstance(each, Compiled)
    assert each.path.read_text() == "object\n"
    assert 0 < each.cpu_seconds < 60


def test_the_first_error_is_what_went_wrong(tmp_path: Path) -> None:
    gate = gate_with(tmp_path, "echo a.cu: warning; echo 'a.cu(3): error: no' >&2; exit 2")
    said = compiled(tmp_path, gate, KERNELS, "103a")
    assert said == f"{KERNELS.name} for sm_103a: a.cu(3): error: no"


def test_a_compiler_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_gate, "SECONDS", 1)
    said = compiled(tmp_path, gate_with(tmp_path, "exec sleep 60"), KERNELS, "90a")
    assert said == f"{KERNELS.name} for sm_90a: expected to end within 1 s, found it running"
