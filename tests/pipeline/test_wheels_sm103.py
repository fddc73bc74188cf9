"""FlashInfer's patched wheel: refused where it would not be what runs, and packed as it was."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, WheelError
from headrace.pipeline import commands_line, flashinfer, sources, wheels, wheels_sm103
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pin, load_pins
from headrace.pipeline.series import series_text

COMMITTED = Layout.find()
WHEEL = "flashinfer_python-0.7.0.post1-py3-none-any.whl"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A checkout with the committed pins and a small patched FlashInfer."""
    found = Layout(tmp_path / "checkout")
    tree = found.patched / load_pins(COMMITTED.pins).get("flashinfer").folder
    (tree / "flashinfer/data/csrc").mkdir(parents=True)
    (tree / "flashinfer/data/csrc/kernel.cu").write_text("// patched\n")
    (tree / "flashinfer/data/csrc/algorithm.sort_heap.h").write_text("// no library\n")
    (tree / "flashinfer_python-0.7.0.post1.dist-info").mkdir()
    (found.patches / "flashinfer").mkdir(parents=True)
    (found.patches / "flashinfer/series").write_text(series_text([]))
    found.pins.write_text(COMMITTED.pins.read_text())

    def patched(layout: Layout, pin: Pin) -> Path:
        return tree

    def fetched(layout: Layout, pin: Pin) -> Path:
        return layout.sources / pin.file

    def own(layout: Layout, folder: Path) -> Path:
        return folder / "headrace.whl"

    monkeypatch.setattr(wheels, "patch_project", patched)
    monkeypatch.setattr(wheels, "own_wheel", own)
    monkeypatch.setattr(sources, "fetch_pin", fetched)
    return found


def change(layout: Layout, old: str, new: str) -> None:
    text = layout.pins.read_text()
    assert old in text
    layout.pins.write_text(text.replace(old, new, 1))


def test_patched_sources_are_packed_under_the_same_version(layout: Layout) -> None:
    wheel, own = wheels_sm103.build_sm103(layout)
    assert (wheel.name, own.name) == (WHEEL, "headrace.whl")
    with zipfile.ZipFile(wheel) as zipped:
        assert zipped.read("flashinfer/data/csrc/kernel.cu") == b"// patched\n"
        assert not [name for name in zipped.namelist() if "/aot/" in name or name.endswith(".so")]
        says = json.loads(zipped.read("flashinfer/data/headrace-module.json"))
    assert (says["mode"], says["module"]) == ("jit", "fused_moe_trtllm_sm100")


def test_another_series_makes_another_wheel_and_the_rest_does_not(layout: Layout) -> None:
    pins = load_pins(layout.pins)
    stamp = flashinfer.flashinfer_wheel(layout, pins).stat().st_mtime_ns
    assert flashinfer.flashinfer_wheel(layout, pins).stat().st_mtime_ns == stamp
    kernel = layout.patched / pins.get("flashinfer").folder / "flashinfer/data/csrc/kernel.cu"
    kernel.write_text("// patched anew\n")
    assert flashinfer.flashinfer_wheel(layout, pins).stat().st_mtime_ns != stamp


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('compile-for = "10.3a"', 'compile-for = "10.0a"',
         r"\[lmcache\] compile-for: expected code that runs on SM103, found '10\.0a'"),
        ('compile-for = "10.3a"\ndevice-code = ["sm_103a"]',
         'compile-for = "10.3"\ndevice-code = ["sm_103a"]',
         r"\[flashinfer\] compile-for: .*found '10\.3', of which it makes 10\.3a without a word"),
        ('compile-for = "10.3a"\n', "",
         r"\[lmcache\] compile-for: expected an architecture such as 10\.3a, found none"),
        ('name = "nixl-cu13"', 'name = "flashinfer-jit-cache"',
         "expected no flashinfer-jit-cache in flavor sm103, found a pin"),
    ],
)  # fmt: skip
def test_pins_that_cannot_come_out_right_are_refused(
    layout: Layout, old: str, new: str, complaint: str
) -> None:
    change(layout, old, new)
    with pytest.raises(ConfigurationError, match=complaint):
        wheels_sm103.build_sm103(layout)
    assert not layout.wheels("sm103").exists()


@pytest.mark.parametrize(
    "name", ["aot/fused_moe_trtllm_sm100/fused_moe_trtllm_sm100.so", "lib/libnvtensor.so.1"]
)
def test_a_precompiled_module_in_the_tree_is_refused(layout: Layout, name: str) -> None:
    stray = (
        layout.patched / load_pins(layout.pins).get("flashinfer").folder / "flashinfer/data" / name
    )
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"\x7fELF")
    with pytest.raises(WheelError, match=f"expected sources alone, found flashinfer/data/{name}"):
        wheels_sm103.build_sm103(layout)


@pytest.mark.parametrize(
    "command",
    [
        lambda: commands_line.image("sm103"),
        lambda: commands_line.build("sm103"),
        lambda: commands_line.reproduce("sm103"),
    ],
)
def test_what_needs_an_image_is_refused_at_once(command: Callable[[], None]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"has no image of it.* run `python build.py wheels"
    ):
        command()
