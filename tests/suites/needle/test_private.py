"""`headrace needle --private` with a stand-in for vLLM: all is started, and gone afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.suites.needle.private import _environment, _free_ports
from tests.suites.sites import ROOT


def test_it_brings_all_it_needs(tmp_path: Path) -> None:
    """Green, with an engine started twice; the engine's log and the model lie in the folder."""
    ran = _private(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    out = tmp_path / "out"
    log = (out / "private" / "engine.log").read_text()
    assert log.count("serving") == 2
    assert (out / "private" / "model" / "model.safetensors").is_file()
    lines = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    states = {line["state"] for line in lines if line["prompt"] == "1500-brief"}
    assert states == {"cold", "L2"}
    assert "green" in _control(ran.stdout)
    assert "other KV" in _control(ran.stdout)
    assert lines[0]["again"].startswith("headrace needle --private --seed 4 --only ")
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False)
    assert left.stdout == b"", "no process is left"


def test_without_a_cache_it_is_void(tmp_path: Path) -> None:
    ran = _private(tmp_path, FAKE_VLLM="no-cache")
    assert ran.returncode == 12, ran.stdout + ran.stderr


def test_a_model_that_does_not_notice_a_wrong_chunk_is_red(tmp_path: Path) -> None:
    """The negative control: all else is green, and the answer with another's chunk as well."""
    ran = _private(tmp_path, FAKE_VLLM="no-sums")
    assert ran.returncode == 11, ran.stdout + ran.stderr
    assert "2 of " in ran.stderr.splitlines()[-1]
    assert "the cold answer, with another's chunk in it" in _control(ran.stdout)


def test_an_engine_that_ends_is_one_line_with_its_log(tmp_path: Path) -> None:
    ran = _private(tmp_path, body="echo no such instruction; exit 1")
    assert ran.returncode == 13, ran.stdout + ran.stderr
    assert "  | no such instruction" in ran.stderr
    assert "expected the private engine within" in ran.stderr.splitlines()[-1]


def test_an_address_or_private_and_not_both(tmp_path: Path) -> None:
    for words in ([], ["http://127.0.0.1:9", "--private"]):
        ran = subprocess.run(
            [sys.executable, "-m", "headrace.cli", "needle", *words],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ran.returncode == 2
        assert "expected an address or --private" in ran.stderr


def test_ranks_get_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5, 7})
    assert _environment(2)["VLLM_CPU_OMP_THREADS_BIND"] == "0,1|2,5"
    assert _environment(8)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "1")
    assert "LMCACHE_CHUNK_SIZE" not in _environment(2)


def test_ports_differ_in_one_digit() -> None:
    base = _free_ports(3)
    assert base % 10 == 0


def _control(output: str) -> str:
    return next(line for line in output.splitlines() if "control/spoilt-a" in line)


def _private(
    folder: Path, *, body: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    programs = folder / "bin"
    programs.mkdir()
    engine = programs / "vllm"
    engine.write_text(
        f'#!/bin/sh\n{body or f"exec {sys.executable} -m tests.suites.needle.fake_vllm"} "$@"\n'
    )
    engine.chmod(0o755)
    path = os.pathsep.join([str(programs), "/usr/bin", "/bin"])
    return subprocess.run(
        [
            sys.executable, "-m", "headrace.cli", "needle", "--private", "--seed", "4",
            "--lengths", "1000", "--brief", "1500", "--only", "1*-*", "--only", "rank-1",
            "--only", "spoilt-*",
            "--out", str(folder / "out"),
        ],
        env={**os.environ, "PATH": path, **environment}, cwd=ROOT,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
