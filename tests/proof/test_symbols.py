"""What an extension asks for is followed without loading it, and what nobody has is named."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.proof.elf import read_library
from tests.proof.conftest import Site

DRIVER = "extern int {symbol}(void); int call(void) {{ return {symbol}(); }}"
LOAD = "import ctypes, pathlib\nctypes.CDLL(str(pathlib.Path(__file__).parent / {name!r}))\n"


def build(path: Path, source: str, *options: str) -> str:
    """Compile `source`, with options such as -lname; return the file's sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path, "-x", "none", *options],
        input=source,
        text=True,
        check=True,
        timeout=60,
    )
    return hashlib.sha256(path.read_bytes()).hexdigest()


def request(files: Sequence[str], **more: object) -> dict[str, Any]:
    return {"distributions": [{"name": "toy", "files": dict.fromkeys(files, "")}], **more}


def problems(site: Site, files: Sequence[str], **more: object) -> list[str]:
    found = site.prove("symbols", request(files, **more))["problems"]
    return [line.replace(f"{site.folder}/", "") for line in found]


@pytest.fixture
def toy(site: Site) -> Site:
    """A package with a library beside its modules, and one of a stand-in driver elsewhere."""
    site.install("toy", {"toy/__init__.py": ""})
    build(site.folder / "toy/libs/libhelp.so", "int help(void) { return 1; }",
          "-Wl,-soname,libhelp.so")  # fmt: skip
    build(site.folder / "driver/libcuda.so", "int cuInit(void) { return 1; }",
          "-Wl,-soname,libcuda.so.1")  # fmt: skip
    return site


def extension(site: Site, name: str, symbol: str, *options: str) -> str:
    relative = f"toy/{name}"
    build(site.folder / relative, DRIVER.format(symbol=symbol), *options)
    return relative


def helped(site: Site, rpath: str = "-Wl,-rpath,$ORIGIN/libs") -> list[str]:
    return [f"-L{site.folder}/toy/libs", "-lhelp", rpath]


@pytest.mark.parametrize("tag", ["--disable-new-dtags", "--enable-new-dtags"])
def test_a_library_beside_it_is_found_by_rpath_and_by_runpath(toy: Site, tag: str) -> None:
    file = extension(toy, "uses.so", "help", f"-Wl,{tag}", *helped(toy))
    answer = toy.prove("symbols", request([file]))
    assert answer["problems"] == []
    assert answer["facts"]["libraries"] == 1 and answer["facts"]["symbols"] >= 1


def test_a_library_that_is_nowhere_is_named_and_so_is_what_it_would_bring(toy: Site) -> None:
    file = extension(toy, "uses.so", "help", *helped(toy, "-Wl,-rpath,$ORIGIN/other"))
    assert problems(toy, [file]) == [
        "toy/uses.so: needs libhelp.so, which is nowhere",
        "toy/uses.so: undefined symbol help",
    ]


def test_a_symbol_that_nobody_has_is_named(toy: Site) -> None:
    file = extension(toy, "bad.so", "nobody_has_this", *helped(toy))
    assert problems(toy, [file]) == ["toy/bad.so: undefined symbol nobody_has_this"]


def test_only_the_drivers_own_symbols_may_come_from_its_library(toy: Site) -> None:
    driver = [f"-L{toy.folder}/driver", "-Wl,--no-as-needed", "-lcuda"]
    assert problems(toy, [extension(toy, "gpu.so", "cuInit", *driver)]) == []
    assert problems(toy, [extension(toy, "odd.so", "cublasInit", *driver)]) == [
        "toy/odd.so: undefined symbol cublasInit"
    ]
    assert problems(toy, [extension(toy, "lone.so", "cuInit")]) == [
        "toy/lone.so: undefined symbol cuInit"
    ], "it asks for no driver"


def test_a_library_that_is_mapped_already_is_found_by_its_name(toy: Site) -> None:
    file = extension(toy, "uses.so", "help", *helped(toy, "-Wl,-z,now"))
    assert problems(toy, [file]) != []
    toy.install("first", {"first/__init__.py": LOAD.format(name="../toy/libs/libhelp.so")})
    assert problems(toy, [file], preload=["first"]) == []


def test_symbols_of_a_mapped_library_count_only_if_everybody_sees_them(toy: Site) -> None:
    file = extension(toy, "bare.so", "help")
    toy.install("first", {"first/__init__.py": LOAD.format(name="../toy/libs/libhelp.so")})
    assert problems(toy, [file], preload=["first"]) == ["toy/bare.so: undefined symbol help"]
    assert problems(toy, [file], preload=["first"], **{"global": ["libhelp"]}) == []


def test_a_version_that_the_found_library_lacks_is_named(toy: Site) -> None:
    script = toy.folder / "map"
    versioned: Mapping[str, str] = {"new": "V_1 { global: help; };", "old": "V_0 { global: *; };"}
    for folder, text in versioned.items():
        script.write_text(text)
        build(toy.folder / f"toy/{folder}/libhelp.so", "int help(void) { return 1; }",
              "-Wl,-soname,libhelp.so", f"-Wl,--version-script,{script}")  # fmt: skip
    build(toy.folder / "toy/uses.so", DRIVER.format(symbol="help"), f"-L{toy.folder}/toy/new",
          "-lhelp", "-Wl,-rpath,$ORIGIN/old")  # fmt: skip
    assert problems(toy, ["toy/uses.so"]) == [
        "toy/uses.so: needs version V_1 of libhelp.so, not in toy/old/libhelp.so"
    ]


def test_an_exception_covers_what_lacks_something_and_must_apply(toy: Site) -> None:
    bad = extension(toy, "plugin_bad.so", "nobody_has_this")
    good = extension(toy, "good.so", "help", *helped(toy))
    answer = toy.prove("symbols", request([bad, good], optional={"toy/plugin_*.so": "not used"}))
    assert answer["problems"] == []
    assert answer["facts"]["optional"] == {"toy/plugin_*.so": [bad]}
    stale = "toy/plugin_*.so: excepted (not used), but no such extension lacks anything"
    assert problems(toy, [good], optional={"toy/plugin_*.so": "not used"}) == [stale]


def test_modules_of_another_python_are_left_out_and_counted(toy: Site) -> None:
    file = extension(toy, "bad.cpython-27-x86_64-linux-gnu.so", "nobody_has_this")
    answer = toy.prove("symbols", request([file]))
    assert answer["problems"] == [] and answer["facts"]["foreign"] == 1


def test_what_is_no_library_is_named(toy: Site, tmp_path: Path) -> None:
    (toy.folder / "toy/text.so").write_text("no library at all, but longer than a header is" * 2)
    (toy.folder / "toy/cut.so").write_bytes((toy.folder / "toy/libs/libhelp.so").read_bytes()[:900])
    found = problems(toy, ["toy/text.so", "toy/cut.so", "toy/gone.so"])
    assert [line.split(":")[0] for line in found[:2]] == [
        "toy/cut.so",
        "[Errno 2] No such file or directory",
    ]
    assert found[2] == "toy/text.so: expected a 64-bit little-endian ELF file"


def test_a_weak_symbol_need_not_be_there_and_a_hidden_one_is_not_offered(tmp_path: Path) -> None:
    source = (
        "extern int wanted(void); extern int maybe(void) __attribute__((weak));"
        '__attribute__((visibility("hidden"))) int inner(void) { return wanted(); }'
        "int outer(void) { return maybe ? maybe() : inner(); }"
    )
    build(tmp_path / "x.so", source)
    library = read_library(tmp_path / "x.so")
    assert "wanted" in library.undefined and "maybe" not in library.undefined
    assert "outer" in library.defined and "inner" not in library.defined
