"""What is compiled in two places is the same, and names neither."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.pipeline import prefix_maps


def compiled(place: Path, *launcher: str) -> bytes:
    """Compile a source below `place` that names itself and a header of an environment there."""
    work, environment = place / "work", place / "venv"
    for folder in (work, environment / "include"):
        folder.mkdir(parents=True)
    (environment / "include" / "of.h").write_text("inline char const* header = __FILE__;\n")
    (work / "of.cpp").write_text(
        '#include "of.h"\nchar const* one() { return header; }\n'
        "char const* two() { return __FILE__; }\n"
    )
    subprocess.run(
        [
            *launcher, "g++", "-std=c++17", *prefix_maps.options(work, environment), "-c",
            f"-I{environment / 'include'}", str(work / "of.cpp"), "-o", str(place / "of.o"),
        ],
        cwd=work, check=True, timeout=60,
    )  # fmt: skip
    return (place / "of.o").read_bytes()


def test_two_places_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "cache"))
    first = compiled(tmp_path / "one")
    assert b"/usr/include/of.h" in first
    assert f"{prefix_maps.SOURCES}/of.cpp".encode() in first
    assert str(tmp_path).encode() not in first
    assert compiled(tmp_path / "two") == first
    if shutil.which("ccache"):
        assert compiled(tmp_path / "three", "ccache") == first
