"""`headrace serve` as a process: what it prints, what it starts, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

URL = "LMCACHE_REMOTE_URL"


def test_print_is_what_a_shell_runs(tmp_path: Path) -> None:
    """The printed text, run by a shell with a stand-in engine, gives words and variables back."""
    printed = _headrace("prefill", "a model", "--mla", "--print", path=_engine(tmp_path))
    assert printed.returncode == 0, printed.stderr
    assert "note: vLLM 0.31.0: ranks above 0" in printed.stderr
    ran = subprocess.run(
        ["sh", "-c", printed.stdout], env={**os.environ, "PATH": _engine(tmp_path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    as_json = json.loads(_headrace("prefill", "a model", "--mla", "--json").stdout)
    assert json.loads(ran.stdout) == [as_json["command"][1:], as_json["environment"][URL]]
    assert "a model" in as_json["command"]


def test_without_print_it_becomes_the_engine(tmp_path: Path) -> None:
    ran = _headrace(
        "prefill", "m", "--mla", "--", "--gpu-memory-utilization", "0.9", path=_engine(tmp_path)
    )
    words, url = json.loads(ran.stdout)
    assert words[-2:] == ["--gpu-memory-utilization", "0.9"]
    assert url == "resp://valkey-lmcache-{rank}.vllm.svc.cluster.local:6379"


def test_refusals_are_one_line_each_with_a_code_of_their_own() -> None:
    ran = _headrace("prefill", "m", "--mla", "--pp", "2", "--dcp", "2", "--print")
    assert ran.returncode == 14
    assert ran.stdout == ""
    lines = ran.stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["--pp", "--dcp"]


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "chunk_size=abc"), ("--set", "x;touch pwned;y=1"), ("--l1-gib", "inf"),
        ("second",), ("--", "--tensor-par", "4"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_bad_value_is_one_line(words: tuple[str, ...]) -> None:
    ran = _headrace("prefill", "m", "--mla", "--print", *words)
    assert ran.returncode == 14, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1


def test_without_vllm_it_says_so(tmp_path: Path) -> None:
    ran = _headrace("decode", "m", path=str(tmp_path))
    assert ran.returncode == 10
    assert "couldn't find 'vllm' in PATH" in ran.stderr


def _engine(folder: Path) -> str:
    """Return a PATH with a `vllm` that prints its words and one variable."""
    stand_in = folder / "vllm"
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"print(json.dumps([sys.argv[1:], os.environ[{URL!r}]]))\n"
    )
    stand_in.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def _headrace(*words: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("LMCACHE_")}
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "serve", *words], env={**clean, "PATH": path},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
