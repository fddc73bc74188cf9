"""An engine starts with the recorded module of FlashInfer, or does not start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine import hand_over, kernel_module
from headrace.engine.kernel_check import require_recorded_module
from headrace.errors import KernelModuleError
from tests.kernel.loader_site import AOT as LIBRARY
from tests.kernel.loader_site import MODULE, SYMBOL
from tests.kernel.loader_site import SOURCE as KERNEL
from tests.serve import recorded_site
from tests.serve.recorded_site import Fault, make_site
from tests.suites.sites import ROOT

FAULTS: dict[str, tuple[str, Fault, str]] = {
    "another build": ("aot", recorded_site.another_build, rf"{LIBRARY}: expected sha256 \w+,"),
    "gone": ("aot", recorded_site.gone, rf"{LIBRARY}: expected the recorded file, found No such"),
    "no symbol": (
        "aot", recorded_site.without_symbol, rf"{LIBRARY}: expected the symbol {SYMBOL}, found none"
    ),
    "symbol not its own": (
        "aot", recorded_site.symbol_of_another_library,
        rf"{LIBRARY}: expected the symbol elsewhere, found none",
    ),
    "no library": ("aot", recorded_site.no_library, rf"{LIBRARY}: expected a shared library,"),
    "changed source": ("aot", recorded_site.changed_source, rf"{KERNEL}: expected sha256 \w+,"),
    "changed source, jit": ("jit", recorded_site.changed_source, rf"{KERNEL}: expected sha256 "),
    "source gone": ("jit", recorded_site.source_gone, rf"{KERNEL}: expected the recorded file,"),
    "stock modules": (
        "jit", recorded_site.stock_modules,
        r"flashinfer_jit_cache: expected no flashinfer_jit_cache in mode jit, found it",
    ),
    "stock in place": (
        "jit", recorded_site.stock_in_place,
        rf"aot/{MODULE}: expected no precompiled {MODULE} in mode jit, found one",
    ),
    "broken record": ("aot", recorded_site.broken_record, r"headrace-module.json: expected JSON,"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["aot", "jit"])
def test_what_is_as_recorded_passes(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, mode)
    monkeypatch.syspath_prepend(site)
    assert require_recorded_module(site).mode == mode


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_as_recorded_is_one_line(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode, spoil, pattern = FAULTS[fault]
    site = make_site(tmp_path, mode)
    spoil(site)
    monkeypatch.syspath_prepend(site)
    with pytest.raises(KernelModuleError, match=pattern) as refused:
        require_recorded_module(site)
    assert re.search(
        r"; (start the image as it was published|take an image .*)$", str(refused.value)
    )
    assert "\n" not in str(refused.value)


def test_stock_modules_beside_a_compiled_one_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashInfer, as patched, never takes theirs."""
    site = make_site(tmp_path, "aot")
    recorded_site.stock_modules(site)
    monkeypatch.syspath_prepend(site)
    assert require_recorded_module(site).mode == "aot"


def test_another_flashinfer_in_front_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, "aot")
    other = tmp_path / "front"
    recorded_site.place(other / "flashinfer" / "__init__.py", b"")
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(other)
    found = rf"{site}/flashinfer: expected Python to import this .*, found {other}/flashinfer;"
    with pytest.raises(KernelModuleError, match=found):
        require_recorded_module(site)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with a `vllm` that says that it was started."""
    program = tmp_path / "bin" / "vllm"
    recorded_site.place(program, b"#!/bin/sh\necho started\n")
    program.chmod(0o755)
    return program.parent


def serve(
    program: Path, site: Path | None, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `headrace serve` where `program` has the only vllm and `site` is installed."""
    path = [str(folder) for folder in (site, *sys.path[1:]) if folder]
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "serve", *words],
        env={"PATH": str(program), "PYTHONPATH": os.pathsep.join(path), **environment},
        cwd=program, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def module_line(ran: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that is about the module; `decode` has notes of its own."""
    (line,) = (line for line in ran.stderr.splitlines() if not line.startswith("note: "))
    return line


@pytest.mark.parametrize("words", [("/models/NAME",), ("decode", "NAME")], ids=repr)
def test_the_engine_starts_behind_one_line(
    words: tuple[str, ...], tmp_path: Path, program: Path
) -> None:
    site = make_site(tmp_path, "aot")
    ran = serve(program, site, *words, HEADRACE_KERNEL_MODULE="aot")
    assert (ran.returncode, ran.stdout) == (0, "started\n"), ran.stderr
    says = rf"headrace: {MODULE} as recorded, mode aot: {site}/{LIBRARY}, sha256 \w{{64}}, exports"
    assert re.fullmatch(rf"{says} {SYMBOL}", module_line(ran)), ran.stderr


def test_what_the_first_start_compiles_is_said(tmp_path: Path, program: Path) -> None:
    ran = serve(program, make_site(tmp_path, "jit"), "NAME")
    assert (ran.returncode, ran.stdout) == (0, "started\n"), ran.stderr
    assert ran.stderr == (
        f"headrace: {MODULE} as recorded, mode jit: to be compiled at the first start, "
        f"from sources of series {'5' * 64}\n"
    )


@pytest.mark.parametrize("words", [("/models/NAME",), ("decode", "NAME"), ()], ids=repr)
def test_the_engine_does_not_start_with_another(
    words: tuple[str, ...], tmp_path: Path, program: Path
) -> None:
    site = make_site(tmp_path, "aot")
    recorded_site.another_build(site)
    ran = serve(program, site, *words)
    assert (ran.returncode, ran.stdout) == (19, ""), ran.stderr
    assert re.fullmatch(rf"headrace: {site}/{LIBRARY}: expected sha256 .*", module_line(ran))


def test_an_image_that_lost_its_record_does_not_start(tmp_path: Path, program: Path) -> None:
    """As after `pip install flashinfer-python` on top of it."""
    ran = serve(program, None, "NAME", HEADRACE_KERNEL_MODULE="aot")
    assert (ran.returncode, ran.stdout) == (19, "")
    assert ran.stderr == (
        "headrace: HEADRACE_KERNEL_MODULE=aot: expected flashinfer/data/headrace-module.json in a "
        "folder of sys.path, found none; start the image as it was published\n"
    )


def test_a_record_of_another_mode_does_not_start(tmp_path: Path, program: Path) -> None:
    ran = serve(program, make_site(tmp_path, "jit"), "NAME", HEADRACE_KERNEL_MODULE="aot")
    assert (ran.returncode, ran.stdout) == (19, "")
    assert "headrace-module.json: expected mode aot, the image's, found jit;" in ran.stderr


def test_printing_a_command_checks_nothing(tmp_path: Path, program: Path) -> None:
    site = make_site(tmp_path, "aot")
    recorded_site.gone(site)
    ran = serve(program, site, "decode", "NAME", "--print")
    assert ran.returncode == 0, ran.stderr


def test_the_check_imports_nothing_of_size(tmp_path: Path, program: Path) -> None:
    """flashinfer itself would raise: its stand-in does."""
    site = make_site(tmp_path, "aot")
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); from pathlib import Path; "
        "from headrace.engine.kernel_check import report_module; "
        f"report_module(Path({str(site)!r}), ''); "
        "names = {name.partition('.')[0] for name in sys.modules} - {'__main__'}; "
        "print(names - sys.stdlib_module_names)"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout == "{'headrace'}\n"


def test_the_place_of_the_record_is_one() -> None:
    assert hand_over.RECORD == kernel_module.RECORD


def test_the_image_says_its_mode_to_those_who_start_it() -> None:
    assert f"{hand_over.MODE}=$KERNEL_MODULE\n" in (ROOT / "docker/Dockerfile").read_text()
    targets = (ROOT / "docker/docker-bake.hcl").read_text()
    assert "args     = { KERNEL_MODULE = KERNEL_MODULE }" in targets.partition('"sm103" {')[2]
