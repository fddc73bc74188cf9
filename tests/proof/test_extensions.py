"""Compiled modules are proved by hash and by loading them, each in a process of its own."""

from __future__ import annotations

import hashlib
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.proof.conftest import Site

MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_native(void) { return PyModule_Create(&module); }
"""
UNDEFINED = "extern int nobody_has_this(void); int call(void) { return nobody_has_this(); }"
ABORTS = "#include <stdlib.h>\n__attribute__((constructor)) static void now(void) { abort(); }"
PLAIN = "int call(void) { return 5; }"


def build(path: Path, source: str) -> str:
    """Compile `source` to the shared library `path`; return its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    include = sysconfig.get_path("include")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-I{include}", "-x", "c", "-", "-o", path],
        input=source,
        text=True,
        check=True,
        timeout=60,
    )
    return hashlib.sha256(path.read_bytes()).hexdigest()


def request(files: Mapping[str, str]) -> dict[str, Any]:
    return {"distributions": [{"name": "toy", "files": dict(files)}]}


@pytest.fixture
def toy(site: Site) -> Site:
    site.install("toy", {"toy/__init__.py": ""})
    return site


def test_modules_and_plain_libraries_load(toy: Site) -> None:
    files = {
        "toy/native.so": build(toy.folder / "toy/native.so", MODULE),
        "toy/plain.so": build(toy.folder / "toy/plain.so", PLAIN),
    }
    answer = toy.prove("extensions", request(files))
    assert answer["problems"] == []
    assert answer["facts"]["loaded"] == ["toy/native.so", "toy/plain.so"]


def test_an_undefined_symbol_is_named(toy: Site) -> None:
    files = {"toy/bad.so": build(toy.folder / "toy/bad.so", UNDEFINED)}
    problems = toy.prove("extensions", request(files))["problems"]
    assert len(problems) == 1
    assert "undefined symbol: nobody_has_this" in problems[0]


def test_a_library_that_kills_its_process_does_not_kill_the_proof(toy: Site) -> None:
    files = {
        "toy/a_aborts.so": build(toy.folder / "toy/a_aborts.so", ABORTS),
        "toy/plain.so": build(toy.folder / "toy/plain.so", PLAIN),
    }
    answer = toy.prove("extensions", request(files))
    assert answer["problems"] == [f"{toy.folder}/toy/a_aborts.so: killed by SIGABRT while loading"]
    assert answer["facts"]["loaded"] == ["toy/plain.so"]


def test_a_missing_extension_is_named(toy: Site) -> None:
    assert toy.prove("extensions", request({"toy/gone.so": "0"}))["problems"] == [
        f"{toy.folder}/toy/gone.so: expected an extension of toy, found none"
    ]


def test_another_build_of_an_extension_is_named(toy: Site) -> None:
    build(toy.folder / "toy/plain.so", PLAIN)
    problems = toy.prove("extensions", request({"toy/plain.so": "0" * 64}))["problems"]
    assert len(problems) == 1 and "expected sha256 0000" in problems[0]


def test_an_extension_that_no_record_lists_is_named(toy: Site) -> None:
    files = {"toy/plain.so": build(toy.folder / "toy/plain.so", PLAIN)}
    build(toy.folder / "toy/deep/stray.so", PLAIN)
    assert toy.prove("extensions", request(files))["problems"] == [
        f"{toy.folder}/toy/deep/stray.so: an extension that no record lists"
    ]


def test_a_module_that_python_resolves_elsewhere_is_named(toy: Site, tmp_path: Path) -> None:
    files = {"toy/native.so": build(toy.folder / "toy/native.so", MODULE)}
    build(toy.folder / "toy/native.abi3.so", MODULE)
    files["toy/native.abi3.so"] = hashlib.sha256(
        (toy.folder / "toy/native.abi3.so").read_bytes()
    ).hexdigest()
    problems = toy.prove("extensions", request(files))["problems"]
    assert len(problems) == 1 and "as toy.native" in problems[0]


def test_without_a_driver_what_asks_for_it_is_compared_and_listed(toy: Site) -> None:
    stub = toy.folder / "stub/libcuda.so"
    stub.parent.mkdir()
    options = ["-shared", "-fPIC", "-x", "c"]
    subprocess.run(
        ["gcc", *options, "-", "-Wl,-soname,libcuda.so.1", "-o", stub],
        input="int cuInit(void) { return 0; }", text=True, check=True, timeout=60,
    )  # fmt: skip
    path = toy.folder / "toy/gpu.so"
    subprocess.run(
        ["gcc", *options, "-", "-x", "none", "-o", path, f"-L{stub.parent}", "-lcuda"],
        input="extern int cuInit(void); int call(void) { return cuInit(); }",
        text=True, check=True, timeout=60,
    )  # fmt: skip
    files = {"toy/gpu.so": hashlib.sha256(path.read_bytes()).hexdigest()}
    problems = toy.prove("extensions", request(files))["problems"]
    assert len(problems) == 1 and "libcuda.so.1: cannot open shared object" in problems[0]
    answer = toy.prove("extensions", {**request(files), "without_driver": True})
    assert answer["problems"] == [] and answer["facts"] == {"driver": ["toy/gpu.so"]}
    files["toy/bad.so"] = build(toy.folder / "toy/bad.so", UNDEFINED)
    answer = toy.prove("extensions", {**request(files), "without_driver": True})
    assert len(answer["problems"]) == 1 and "nobody_has_this" in answer["problems"][0]
    files["toy/gpu.so"] = "0" * 64
    answer = toy.prove("extensions", {**request(files), "without_driver": True})
    assert any("gpu.so: expected sha256 0000" in line for line in answer["problems"])


def test_optional_modules_and_those_of_another_python_are_compared_alone(toy: Site) -> None:
    names = ("plugin_bad.so", "bad.cpython-27-x86_64-linux-gnu.so")
    files = {f"toy/{name}": build(toy.folder / "toy" / name, UNDEFINED) for name in names}
    wanted = {**request(files), "optional": {"toy/plugin_*.so": "not used"}}
    answer = toy.prove("extensions", wanted)
    assert answer["problems"] == [] and sorted(answer["facts"]["skipped"]) == sorted(files)
    files["toy/plugin_bad.so"] = "0" * 64
    assert len(toy.prove("extensions", {**wanted, **request(files)})["problems"]) == 1
