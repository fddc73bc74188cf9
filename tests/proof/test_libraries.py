"""One copy of a run-time library in the process, none that the flavor excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.proof.extensions import stem_of
from tests.proof.conftest import Site
from tests.proof.test_extensions import PLAIN, build

LOAD = (
    "import ctypes, pathlib\nctypes.CDLL(str(pathlib.Path(__file__).with_name('libtoyomp.so.1')))\n"
)


def request(site: Site, modules: list[str]) -> dict[str, Any]:
    return {
        "import": modules,
        "single": ["libtoyomp"],
        "absent": ["libcudart*.so*"],
        # Not all of NVIDIA's: those that the tests need themselves are seen here too.
        "absent_distributions": ["nvidia-toy*"],
        "roots": [str(site.folder)],
    }


def package(site: Site, name: str) -> Path:
    site.install(name, {f"{name}/__init__.py": LOAD})
    library = site.folder / name / "libtoyomp.so.1"
    build(library, PLAIN)
    return library


def test_one_copy_is_green(site: Site) -> None:
    library = package(site, "one")
    answer = site.prove("libraries", request(site, ["one"]))
    assert answer["problems"] == []
    assert answer["facts"]["mapped"] == {"libtoyomp": [str(library.resolve())]}


def test_two_copies_in_one_process_are_named(site: Site) -> None:
    first, second = package(site, "one"), package(site, "two")
    assert site.prove("libraries", request(site, ["one", "two"]))["problems"] == [
        f"libtoyomp: expected one copy in the process, found {first}, {second}"
    ]


def test_a_library_that_nobody_loads_is_not_proved(site: Site) -> None:
    assert site.prove("libraries", request(site, []))["problems"] == [
        "libtoyomp: expected one copy in the process, found none"
    ]


def test_cuda_by_file_and_by_distribution_is_named(site: Site) -> None:
    package(site, "one")
    site.install("nvidia-toyrt", {"nvidia/lib/libcudart.so.13": ""})
    assert site.prove("libraries", request(site, ["one"]))["problems"] == [
        f"{site.folder}/nvidia/lib/libcudart.so.13: a library that this flavor excludes",
        "nvidia-toyrt: a distribution that this flavor excludes",
    ]


def test_the_stem_ignores_versions_and_the_hash_that_bundling_adds() -> None:
    assert stem_of("/x/libgomp-6a29c32d.so.1.0.0") == "libgomp"
    assert stem_of("/x/libgomp.so.1") == "libgomp"
    assert stem_of("/x/libtorch_cpu.so") == "libtorch_cpu"
    assert stem_of("/x/ld-linux-x86-64.so.2") == "ld-linux-x86-64"
