"""Wheels: versions, refusals, and bytes that depend on inputs alone."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from headrace import __version__
from headrace.errors import ConfigurationError, MachineError, WheelError
from headrace.pipeline import commands_line, wheels
from headrace.pipeline.flashinfer import Mode
from headrace.pipeline.flavor_wheels import require_fitting, require_place
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.pins import load_pins

LAYOUT = Layout.find()


@pytest.fixture
def copy(tmp_path: Path) -> Layout:
    """What headrace's own wheel is made from, in another folder."""
    for name in wheels.OWN_FILES:
        shutil.copyfile(LAYOUT.root / name, tmp_path / name)
    shutil.copytree(
        LAYOUT.root / "headrace",
        tmp_path / "headrace",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copyfile(LAYOUT.pins, tmp_path / "pins.toml")
    return Layout(tmp_path)


def own_wheel(layout: Layout) -> Path:
    return wheels.own_wheel(layout, layout.wheels("cpu"))


def test_the_version_counts_the_patches_of_the_series() -> None:
    pin = load_pins(LAYOUT.pins).get("lmcache")
    lines = (LAYOUT.patches / "lmcache" / "series").read_text().splitlines()
    count = len([line for line in lines if line and not line.startswith("#")])
    assert wheels.patched_version(LAYOUT, pin) == f"0.5.5+headrace.{count}"


@pytest.mark.parametrize(
    ("flavor", "complaint"),
    [("tpu", "expected one of cpu, sm103, found 'tpu'"), ("sm103", "expected cpu, found 'sm103'")],
)
def test_a_flavor_that_cannot_be_built_is_named(flavor: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        wheels.build_wheels(LAYOUT, flavor)


@pytest.mark.parametrize(
    ("flavor", "module", "stock", "complaint"),
    [
        ("tpu", "jit", False, "expected one of cpu, sm103, found 'tpu'"),
        ("cpu", "aot", False, "--module: expected none for flavor cpu, .*found 'aot'; leave it"),
        ("sm103", "jit", True, "--stock: expected flavor cpu, .*found 'sm103'; leave it out"),
    ],
)
def test_an_option_that_would_be_passed_over_is_refused(
    flavor: str, module: Mode, stock: bool, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        require_fitting(flavor, module, stock=stock)
    require_fitting("cpu", "jit", stock=True)
    require_fitting("sm103", "aot")


@pytest.mark.parametrize("name", ["a b", "a\tb", "it's", "a:b", "a,b", "a=b", "a$b"])
def test_a_checkout_where_no_compiler_reads_its_paths_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"expected a path without .*clone into another"):
        require_place(layout)
    monkeypatch.setattr(Layout, "find", lambda: layout)
    # Before anything is fetched: there are no pins here.
    for stage in ("wheels", "image", "build", "reproduce"):
        with pytest.raises(ConfigurationError, match="expected a path without"):
            getattr(commands_line, stage)("sm103")
    assert not layout.root.exists()


@pytest.mark.parametrize("stage", ["image", "build"])
def test_a_base_without_a_digest_is_refused_before_anything_is_fetched(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Layout, "find", lambda: Layout(tmp_path))
    with pytest.raises(ConfigurationError, match=r"BASE_IMAGE: expected NAME@sha256:…, found"):
        getattr(commands_line, stage)("sm103", base_image="debian:12")
    assert not list(tmp_path.iterdir())


def test_a_checkout_elsewhere_is_not_refused(tmp_path: Path) -> None:
    require_place(Layout(tmp_path / "größe-1.0_a+b~c@d"))


def test_the_same_files_in_another_folder_give_the_same_bytes(copy: Layout, tmp_path: Path) -> None:
    first = own_wheel(copy)
    assert first.name == f"headrace-{__version__}-py3-none-any.whl"
    there = tmp_path / "elsewhere" / "deeper"
    shutil.copytree(copy.root, there, ignore=shutil.ignore_patterns("build", "elsewhere"))
    assert hash_file(own_wheel(Layout(there))) == hash_file(first)


def test_a_changed_file_makes_a_new_wheel_and_the_rest_does_not(copy: Layout) -> None:
    stamp = own_wheel(copy).stat().st_mtime_ns
    assert own_wheel(copy).stat().st_mtime_ns == stamp
    (copy.root / "unrelated.txt").write_text("x")
    assert own_wheel(copy).stat().st_mtime_ns == stamp
    with (copy.root / "headrace" / "errors.py").open("a") as source:
        source.write("# changed\n")
    assert own_wheel(copy).stat().st_mtime_ns != stamp


def test_a_build_that_fails_names_its_log_and_leaves_no_wheel(copy: Layout) -> None:
    (copy.root / "pyproject.toml").write_text("[build-system\n")
    with pytest.raises(WheelError, match=r"full log: .*cpu-headrace\.log"):
        own_wheel(copy)
    assert not list((copy.build / "wheels").rglob("*.whl"))


def test_a_release_that_is_a_wheel_is_judged_as_it_is(tmp_path: Path) -> None:
    pin = load_pins(LAYOUT.pins).get("flashinfer")
    assert wheels.build_release(LAYOUT, pin, tmp_path, "0.7.2") == tmp_path


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 0, "final", 0))
    with pytest.raises(MachineError, match=r"expected Python 3\.11 on x86_64"):
        wheels.build_stock(LAYOUT)
