"""`headrace needle --private` with a stand-in for vLLM: all is started, and gone afterwards."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigurationError, EndpointError, MachineError
from headrace.suites.needle import engine, private
from headrace.suites.needle.client import Endpoint
from headrace.suites.needle.engine import PrivateEngine, environment, free_ports
from headrace.suites.needle.options import Options
from tests.suites.sites import ROOT


def test_it_brings_all_it_needs(tmp_path: Path) -> None:
    """Green, with an engine started twice; its log lies in the folder, and no folder of its own."""
    ran = _private(tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    out = tmp_path / "out"
    assert (out / "engine.log").read_text().count("serving") == 2
    assert not [path for path in out.iterdir() if path.is_dir()], "whose owner may be another user"
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
    assert "to answer, it ended with status 1; see" in ran.stderr.splitlines()[-1]


def test_an_engine_that_stays_silent_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process lives, and nobody answers at its port."""
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(engine, "START_SECONDS", 0.5)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    silent = PrivateEngine(tmp_path, 1, "", [])
    with (
        Endpoint(silent.url, "", 5) as endpoint,
        pytest.raises(EndpointError, match="to answer, it stayed silent for"),
    ):
        silent.start(endpoint)


def test_without_vllm_it_says_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "programs", lambda: str(tmp_path))
    options = Options("", private=True, out=tmp_path / "out")
    with pytest.raises(MachineError, match="couldn't find 'vllm' in PATH; run it in the image"):
        private.run_private(options, lambda result: None)
    assert not options.out.exists(), "nothing was started"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"haystack": Path("/none")}, "--haystack /none: expected a text file"),
        ({"only": ("x*",)}, "--only 'x\\*': expected a pattern"),
        ({"lengths": (20,)}, "20-at-.*: no room for a needle of 13 tokens in 20; raise --lengths"),
        ({"distractors": 99_999}, "--distractors 99999: expected at most"),
    ],
)
def test_options_are_judged_before_a_vllm_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], line: str
) -> None:
    monkeypatch.setattr(private, "programs", lambda: str(tmp_path))
    with pytest.raises(ConfigurationError, match=line):
        private.run_private(Options("", private=True, **changes), lambda result: None)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """Found out before anything is started or asked."""
    (tmp_path / "file").touch()
    for first in ("--private", "http://127.0.0.1:9"):
        ran = _needle(first, "--out", str(tmp_path / "file" / "out"))
        assert ran.returncode == 10, ran.stderr
        assert ran.stderr.splitlines()[-1].startswith(f"headrace: {tmp_path}/file/out: ")


@pytest.mark.parametrize(
    "words",
    [
        ("--valkey", "h:1"), ("--restart", "ask"), ("--model", "m"), ("--dialect", "plain"),
        ("--engine-log", "x"),
    ],
)  # fmt: skip
def test_what_private_brings_cannot_be_given(words: tuple[str, str]) -> None:
    ran = _needle("--private", *words)
    assert ran.returncode == 2
    assert f"{words[0]}: expected none with --private" in ran.stderr


def test_one_cell_of_an_image_is_asked_again_in_the_image() -> None:
    """The words after the digest are the command's own, and choose the one prompt."""
    image = "sha256:" + "ab" * 32
    options = Options(
        "", private=True, ranks=2, lengths=(1100,), brief=(16384,), seed=9, image=image
    )  # fmt: skip
    run, _, words = options.again("16384-brief").partition(f" {image} needle ")
    assert run == "docker run --rm --network none --shm-size 1g --entrypoint headrace"
    listed = _needle(*shlex.split(words), "--list")
    assert listed.stdout.split() == ["16384-brief"], listed.stderr
    assert "--seed 9" in words


def test_ranks_talk_over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    found = environment(2)
    assert (found["GLOO_SOCKET_IFNAME"], found["VLLM_HOST_IP"]) == ("lo", "127.0.0.1")


def test_an_address_or_private_and_not_both(tmp_path: Path) -> None:
    for words, found in ([], "neither"), (["http://127.0.0.1:9", "--private"], "both"):
        ran = _needle(*words)
        assert ran.returncode == 2
        assert f"expected an address or --private, found {found}; for example" in ran.stderr


def test_ranks_get_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5, 7})
    assert environment(2)["VLLM_CPU_OMP_THREADS_BIND"] == "0,1|2,5"
    assert environment(8)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "1")
    assert "LMCACHE_CHUNK_SIZE" not in environment(2)


def test_ports_differ_in_one_digit() -> None:
    base = free_ports(3)
    assert base % 10 == 0


def _needle(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "needle", *words],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


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
