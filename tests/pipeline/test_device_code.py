"""Device code is what cuobjdump lists, and a list that says nothing proves nothing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from headrace.errors import MachineError, WheelError
from headrace.pipeline.cuda import Toolkit
from headrace.pipeline.device_code import found_code, parse_listing, require_device_code
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pin, load_pins

LIBRARY = Path("x.so")
LMCACHE: Pin = load_pins(Layout.find().pins).get("lmcache")


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    """A cuobjdump that prints what the library holds as text, and fails where it has no code."""
    found = Toolkit(tmp_path / "python", tmp_path / "home")
    found.cuobjdump.parent.mkdir(parents=True)
    found.cuobjdump.write_text(
        '#!/bin/sh\nfor library; do :; done\ncat "$library"\ngrep -q ELF "$library"\n'
    )
    found.cuobjdump.chmod(0o755)
    return found


def elf(*names: str) -> bytes:
    lines = (f"ELF file    {n}: kernel.{n}.{name}.cubin\n" for n, name in enumerate(names, 1))
    return "".join(lines).encode()


NO_CODE = b"cuobjdump info    : File 'x' does not contain device code\n"


def wheel(tmp_path: Path, **libraries: bytes) -> Path:
    path = tmp_path / "lmcache-1.whl"
    with zipfile.ZipFile(path, "w") as zipped:
        for name, data in libraries.items():
            zipped.writestr(f"lmcache/{name}.so", data)
        zipped.writestr("lmcache/module.py", elf("sm_90a"))
    return path


@pytest.mark.parametrize(
    ("listed", "code"),
    [
        (elf("sm_103a").decode(), {"sm_103a"}),
        (elf("sm_90", "sm_100f").decode(), {"sm_90", "sm_100f"}),
        ("PTX file    1: a.b.1.sm_100f.ptx\n", {"compute_100f"}),
        (NO_CODE.decode(), set()),
    ],
)
def test_a_listing_is_read(listed: str, code: set[str]) -> None:
    assert parse_listing(listed, LIBRARY) == code


@pytest.mark.parametrize("listed", ["", "cuobjdump fatal   : Unknown option '--list'\n"])
def test_a_listing_that_says_nothing_is_refused(listed: str) -> None:
    with pytest.raises(MachineError, match="expected cuobjdump's list of device code, found"):
        parse_listing(listed, LIBRARY)


def test_the_tool_is_asked_about_the_library(toolkit: Toolkit, tmp_path: Path) -> None:
    library = tmp_path / "one.so"
    library.write_bytes(elf("sm_103a", "sm_103a"))
    assert found_code(toolkit, library) == {"sm_103a"}
    library.write_bytes(NO_CODE)
    assert found_code(toolkit, library) == frozenset()


def test_a_wheel_with_the_promised_code_is_taken(toolkit: Toolkit, tmp_path: Path) -> None:
    path = wheel(tmp_path, cuda_ops=elf("sm_103a"), lmcache_redis=NO_CODE)
    assert require_device_code(toolkit, LMCACHE, path) == {"lmcache/cuda_ops.so": {"sm_103a"}}


@pytest.mark.parametrize(
    ("libraries", "complaint"),
    [
        ({"cuda_ops": elf("sm_100a")}, "in lmcache/cuda_ops.so, found sm_100a"),
        ({"cuda_ops": elf("sm_103a"), "other": elf("sm_90a")}, "in lmcache/other.so, found sm_90a"),
        ({"lmcache_redis": NO_CODE}, "found none in any library"),
        ({}, "found none in any library"),
    ],
)
def test_a_wheel_without_it_is_refused(
    toolkit: Toolkit, tmp_path: Path, libraries: dict[str, bytes], complaint: str
) -> None:
    with pytest.raises(WheelError, match=complaint):
        require_device_code(toolkit, LMCACHE, wheel(tmp_path, **libraries))
