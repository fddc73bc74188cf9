"""The module that is compiled here is the one in the wheel, where FlashInfer looks first."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from headrace.engine.kernel_module import RECORD
from headrace.errors import WheelError
from headrace.pipeline import aot, flashinfer, wheels
from headrace.pipeline.cuda import Toolkit
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pin, Pins, load_pins

# Compiles as FlashInfer would: into a cache below the workspace; the "library" is its own listing.
PYTHON = """#!/bin/sh
set -e
for folder in $(echo "$PYTHONPATH" | tr : ' '); do
    test -d "$folder/flashinfer" || test -d "$folder/flashinfer_cubin"
done
test "$FLASHINFER_NO_DOWNLOAD" = 1
set -- $FLASHINFER_EXTRA_LDFLAGS
test -f "${1#-L}/libcuda.so"
shift
test "$*" = "-Wl,--strip-all,--no-as-needed -lcuda -Wl,--as-needed"
test -z "$FLASHINFER_CUBIN_DIR$NVCC_PREPEND_FLAGS$CXX"
tree="${PYTHONPATH%%:*}"
for flag in $FLASHINFER_EXTRA_CFLAGS $FLASHINFER_EXTRA_CUDAFLAGS; do
    test "$flag" != "-Xcompiler=-ffile-prefix-map=$tree=/usr/src/flashinfer" || mapped=nvcc$mapped
    test "$flag" != "-ffile-prefix-map=$tree=/usr/src/flashinfer" || mapped=$mapped,g++
done
test "$mapped" = nvcc,g++
made=$FLASHINFER_WORKSPACE_BASE/.cache/flashinfer/1/103a/cached_ops/fused_moe_trtllm_sm100
mkdir -p "$made"
echo "ELF file    1: kernel.1.sm_CODE.cubin" > "$made/fused_moe_trtllm_sm100.so"
"""
MODULE = b"ELF file    1: kernel.1.sm_103a.cubin\n"


def cubin_wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("flashinfer_cubin/__init__.py", b"")
    return buffer.getvalue()


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A checkout whose flashinfer-cubin is locked and at hand, with a patched FlashInfer."""
    found = Layout(tmp_path / "checkout")
    data = cubin_wheel()
    text = Layout.find().pins.read_text()
    locked = f'sha256 = "{hashlib.sha256(data).hexdigest()}"\nsize = {len(data)}'
    found.root.mkdir()
    found.pins.write_text(text.replace('sha256 = ""', locked))
    pins = load_pins(found.pins)
    archive = found.sources / "archives" / pins.get(aot.HEADERS).file
    archive.parent.mkdir(parents=True)
    archive.write_bytes(data)
    tree = found.patched / pins.get("flashinfer").folder
    (tree / "flashinfer").mkdir(parents=True)
    (tree / "flashinfer/__init__.py").write_text("patched = True\n")
    (tree / "flashinfer_python-0.7.0.post1.dist-info").mkdir()
    record = {"series_sha256": "5e" * 32, "files": {"flashinfer/__init__.py": "ab" * 32}}
    tree.with_name(f"{tree.name}.json").write_text(json.dumps(record))
    lock = found.build / "cuda" / "headrace-lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("toolkit\n")

    def patched(layout: Layout, pin: Pin) -> Path:
        return tree

    monkeypatch.setattr(wheels, "patch_project", patched)
    return found


def toolkit(folder: Path, code: str = "103a") -> Toolkit:
    made = Toolkit(folder / "toolkit" / "python", folder / "toolkit" / "home")
    for path, script in (
        (made.python, PYTHON.replace("CODE", code)),
        (made.cuobjdump, '#!/bin/sh\nfor library; do :; done\ncat "$library"\n'),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
    return made


def pack(layout: Layout, tools: Toolkit, mode: flashinfer.Mode = "aot") -> zipfile.ZipFile:
    pins: Pins = load_pins(layout.pins)
    return zipfile.ZipFile(flashinfer.flashinfer_wheel(layout, pins, tools, mode))


def test_the_wheel_holds_the_compiled_module_and_names_its_hash(
    layout: Layout, tmp_path: Path
) -> None:
    with pack(layout, toolkit(tmp_path)) as zipped:
        place = "flashinfer/data/aot/fused_moe_trtllm_sm100/fused_moe_trtllm_sm100.so"
        assert zipped.read(place) == MODULE
        assert zipped.read("flashinfer/__init__.py") == b"patched = True\n"
        says = json.loads(zipped.read(RECORD))
    assert (says["mode"], says["sha256"]) == ("aot", hashlib.sha256(MODULE).hexdigest())


def test_the_two_modes_do_not_pass_for_one_another(layout: Layout, tmp_path: Path) -> None:
    tools = toolkit(tmp_path)
    turns: list[tuple[flashinfer.Mode, bool]] = [("aot", True), ("jit", False), ("aot", True)]
    for mode, holds in turns:
        with pack(layout, tools, mode) as zipped:
            assert (aot.PLACE in zipped.namelist()) == holds
            assert json.loads(zipped.read(RECORD))["mode"] == mode


def test_what_the_caller_set_for_flashinfer_does_not_count(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHINFER_CUBIN_DIR", "/elsewhere")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-O0")
    monkeypatch.setenv("CXX", "clang++")
    with pack(layout, toolkit(tmp_path)) as zipped:
        assert zipped.read(aot.PLACE) == MODULE


def test_a_module_for_another_gpu_is_refused(layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="expected device code for sm_103a, found sm_100f"):
        pack(layout, toolkit(tmp_path, "100f"))
    assert not list(layout.wheels("sm103").glob("*"))
