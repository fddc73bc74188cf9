"""What cannot come out right is refused before a toolkit is fetched or anything is compiled."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import (
    ConfigurationError,
    MachineError,
    PublishError,
    SourceError,
    WheelError,
)
from headrace.pipeline import flashinfer, pip_wheel, sources, wheels, wheels_sm103
from headrace.pipeline.cuda import Toolkit, cuda_toolkit
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import Pin, Pins, load_pins
from headrace.pipeline.publish import refuse_unlocked

COMMITTED = Layout.find()
KERNEL = "flashinfer/data/csrc/kernel.cu"
NVCC = """#!/bin/sh
case $1 in
--version) echo "Cuda compilation tools, release 12.8, V12.8.93" ;;
--list-gpu-arch) echo "compute_90 compute_100" ;;
esac
"""


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A checkout with the committed pins and an empty FlashInfer, where no toolkit can be had."""
    found = Layout(tmp_path / "checkout")
    found.root.mkdir()
    found.pins.write_text(COMMITTED.pins.read_text())

    def none(layout: Layout) -> Toolkit:
        raise AssertionError("the toolkit was asked for")

    monkeypatch.setattr(wheels_sm103, "cuda_toolkit", none)
    return found


def change(layout: Layout, old: str, new: str) -> None:
    text = layout.pins.read_text()
    assert old in text
    layout.pins.write_text(text.replace(old, new, 1))


def test_without_its_lock_the_toolkit_is_refused_before_torch_is_fetched(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "fetch_pin", None)
    with pytest.raises(ConfigurationError, match=r"sm103-build\.txt: expected the lock .*found"):
        cuda_toolkit(layout)


@pytest.mark.parametrize(
    ("lock", "complaint"),
    [
        ("# nothing\n", "found no entry"),
        ("nvidia-cuda-nvcc==13.0.88\n", "expected 'name==version --hash=sha256:…'"),
    ],
)
def test_a_lock_that_cannot_be_installed_leaves_the_old_toolkit(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, lock: str, complaint: str
) -> None:
    monkeypatch.setattr(sources, "fetch_pin", None)
    layout.locks.mkdir()
    (layout.locks / "sm103-build.txt").write_text(lock)
    done = layout.build / "cuda" / "headrace-lock"
    done.parent.mkdir(parents=True)
    done.write_text("of the lock before\n")
    with pytest.raises(ConfigurationError, match=rf"sm103-build\.txt: .*{complaint}"):
        cuda_toolkit(layout)
    assert done.is_file()


def test_the_committed_pins_get_as_far_as_the_toolkit(layout: Layout) -> None:
    with pytest.raises(AssertionError, match="the toolkit was asked for"):
        wheels_sm103.build_sm103(layout)


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


def test_an_nvcc_that_does_not_know_sm103_is_refused(layout: Layout, tmp_path: Path) -> None:
    toolkit = Toolkit(tmp_path / "python", tmp_path / "home")
    toolkit.nvcc.parent.mkdir(parents=True)
    toolkit.nvcc.write_text(NVCC)
    toolkit.nvcc.chmod(0o755)
    with pytest.raises(
        ConfigurationError,
        match=r"\[lmcache\] locks/sm103-build\.txt: expected an nvcc that knows compute_103a, "
        r"found release 12\.8, which does not",
    ):
        wheels_sm103.require_nvcc(load_pins(layout.pins), toolkit)


def test_what_the_module_compiles_with_says_from_where_it_comes(layout: Layout) -> None:
    missing = wheels_sm103.headers_fault(layout, load_pins(layout.pins))
    said = str(missing)
    assert "flashinfer_cubin-0.7.0.post1-py3-none-any.whl, found none" in said
    assert "it comes from https://flashinfer.ai/whl" in said
    assert "`python build.py lock pins` on a machine that reaches it" in said


def test_without_the_headers_the_other_wheels_are_built_and_the_old_one_is_gone(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def nothing(*_: object) -> None:
        built.append("nothing")

    def lmcache(*_: object) -> Path:
        built.append("lmcache")
        return Path("lmcache.whl")

    def own(*_: object) -> Path:
        built.append("headrace")
        return Path("headrace.whl")

    monkeypatch.setattr(wheels_sm103, "cuda_toolkit", nothing)
    monkeypatch.setattr(wheels_sm103, "require_nvcc", nothing)
    monkeypatch.setattr(sources, "fetch_pin", _only_locked)
    monkeypatch.setattr(wheels_sm103, "_lmcache", lmcache)
    monkeypatch.setattr(wheels, "own_wheel", own)
    older = layout.wheels("sm103") / load_pins(layout.pins).get("flashinfer").file
    older.parent.mkdir(parents=True)
    older.write_bytes(b"of mode jit")
    with pytest.raises(SourceError, match="flashinfer-cubin"):
        wheels_sm103.build_sm103(layout, "aot")
    assert built == ["nothing", "nothing", "lmcache", "headrace"]
    assert not older.exists()


def test_the_gpu_code_that_the_module_loads_is_there_in_mode_aot_alone(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = load_pins(layout.pins)
    archive = layout.sources / pins.get("flashinfer-cubin").file
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(b"cubins")
    monkeypatch.setattr(sources, "fetch_pin", lambda layout, pin: layout.sources / pin.file)
    for _ in range(2):
        (placed,) = wheels_sm103.place_cubins(layout, pins, "aot")
        assert (placed.parent, placed.read_bytes()) == (layout.wheels("sm103"), b"cubins")
    assert wheels_sm103.place_cubins(layout, pins, "jit") == []
    assert not placed.exists()
    assert archive.exists()


def _only_locked(layout: Layout, pin: Pin) -> Path:
    if not pin.locked:
        raise SourceError(f"[{pin.id}] is not locked")
    return layout.sources / pin.file


def test_an_image_of_the_flavor_cannot_be_published_while_a_pin_has_no_hash() -> None:
    message = "expected a sha256 for flashinfer-cubin, found none; run `python build.py lock pins`"
    with pytest.raises(PublishError, match=message):
        refuse_unlocked(COMMITTED, "sm103")


@pytest.fixture
def packed(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Packs a small FlashInfer in mode "jit"; returns the wheel."""
    pins = load_pins(layout.pins)
    tree = layout.patched / pins.get("flashinfer").folder
    (tree / "flashinfer/data/csrc").mkdir(parents=True)
    (tree / KERNEL).write_text("// patched\n")
    (tree / "flashinfer/data/csrc/algorithm.sort_heap.h").write_text("// no library\n")
    (tree / "flashinfer_python-0.7.0.post1.dist-info").mkdir()
    record = {"series_sha256": "5e" * 32, "files": {KERNEL: "ab" * 32, "flashinfer/gone.py": None}}
    tree.with_name(f"{tree.name}.json").write_text(json.dumps(record))

    def patched(layout: Layout, pin: Pin) -> Path:
        return tree

    monkeypatch.setattr(wheels, "patch_project", patched)

    def pack() -> Path:
        nowhere = Toolkit(Path("none"), Path("none"))
        return flashinfer.flashinfer_wheel(layout, pins, nowhere, "jit")

    return pack


def test_jit_packs_patched_sources_under_the_same_version_and_says_so(
    packed: Callable[[], Path],
) -> None:
    wheel = packed()
    assert wheel.name == "flashinfer_python-0.7.0.post1-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as zipped:
        assert zipped.read(KERNEL) == b"// patched\n"
        assert not [name for name in zipped.namelist() if "/aot/" in name or name.endswith(".so")]
        says = json.loads(zipped.read("flashinfer/data/headrace-module.json"))
    assert says == {
        "module": "fused_moe_trtllm_sm100",
        "mode": "jit",
        "path": None,
        "sha256": None,
        "symbol": "__tvm_ffi_trtllm_moe_activation_patch_id",
        "series_sha256": "5e" * 32,
        "sources": {KERNEL: "ab" * 32},
    }


def test_other_sources_make_another_wheel_and_the_same_ones_none(
    layout: Layout, packed: Callable[[], Path]
) -> None:
    stamp = packed().stat().st_mtime_ns
    assert packed().stat().st_mtime_ns == stamp
    tree = layout.patched / load_pins(layout.pins).get("flashinfer").folder
    (tree / KERNEL).write_text("// patched anew\n")
    assert packed().stat().st_mtime_ns != stamp


@pytest.mark.parametrize(
    "name",
    [
        "data/aot/fused_moe_trtllm_sm100/fused_moe_trtllm_sm100.so",
        "data/lib/libnvtensor.so.1",
        # Linked with NIXL 1.3.1, and made for it alone; the image has 1.4.1.
        "moe_ep/backends/split/comm/nixl_ep/_libs/nixl_ep_cpp.cpython-311-x86_64-linux-gnu.so",
    ],
)
def test_a_precompiled_module_in_the_tree_is_refused(
    layout: Layout, packed: Callable[[], Path], name: str
) -> None:
    pins: Pins = load_pins(layout.pins)
    stray = layout.patched / pins.get("flashinfer").folder / "flashinfer" / name
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"\x7fELF")
    with pytest.raises(WheelError, match=f"expected sources alone, found flashinfer/{name}"):
        packed()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MachineError("/tmp: no space left")])
def test_a_wheel_whose_code_nobody_looked_at_does_not_stay(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    pin = load_pins(layout.pins).get("lmcache")
    tree = layout.patched / pin.folder
    tree.mkdir(parents=True)
    (layout.build / "cuda").mkdir()
    (layout.build / "cuda" / "headrace-lock").touch()

    def patched(layout: Layout, pin: Pin) -> Path:
        return tree

    def version(layout: Layout, pin: Pin) -> str:
        return "1"

    def build(layout: Layout, tree: Path, work: Path, wheel: Path, *_: object) -> None:
        wheel.parent.mkdir(parents=True)
        wheel.touch()

    def end(toolkit: Toolkit, pin: Pin, wheel: Path) -> None:
        assert wheel.exists()
        raise stop

    def environment(*_: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr(wheels, "patch_project", patched)
    monkeypatch.setattr(wheels, "patched_version", version)
    monkeypatch.setattr(wheels_sm103, "_environment", environment)
    monkeypatch.setattr(pip_wheel, "build_copy", build)
    monkeypatch.setattr(wheels_sm103, "require_device_code", end)
    with pytest.raises((KeyboardInterrupt, MachineError)):
        wheels_sm103._lmcache(layout, pin, Toolkit(tree, tree), True)
    assert list(layout.wheels("sm103").iterdir()) == []


def test_what_cannot_be_placed_is_one_line(layout: Layout) -> None:
    wheels_of_it = layout.wheels("sm103")
    wheels_of_it.parent.mkdir(parents=True)
    wheels_of_it.touch()
    with pytest.raises(MachineError, match=r"flashinfer_cubin.*: Not a directory$"):
        wheels_sm103.place_cubins(layout, load_pins(layout.pins), "jit")
