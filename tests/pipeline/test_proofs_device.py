"""Device code is judged per component, and every exception must still be needed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.errors import ImageError, MachineError
from headrace.pipeline.cuda import existing_toolkit
from headrace.pipeline.device_code import parse_listing
from headrace.pipeline.layer_files import each_file
from headrace.pipeline.layout import Layout
from headrace.pipeline.oci import read_layout
from headrace.pipeline.pins import load_pins
from headrace.pipeline.proofs_device import EXCEPTIONS, OtherGpus, judge, summary, unrecorded
from headrace.pipeline.records import WheelRecord
from tests.pipeline.sample_image import layer_of, write_image

PINS = load_pins(Layout.find().pins)
OWN = {name: PINS.get(name) for name in ("lmcache", "vllm", "flashinfer")}
FA3 = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
MODULE = "flashinfer/data/aot/fused_moe_trtllm_sm100/fused_moe_trtllm_sm100.so"
# Of the real libraries, as cuobjdump lists them: code for a family has no "f" in its name.
REAL = {
    "lmcache/cuda_ops.so": "ELF file    1: cuda_ops.1.sm_103a.cubin\n",
    "lmcache/lmcache_redis.so": "cuobjdump info    : File 'x' does not contain device code\n",
    "vllm/_C_stable_libtorch.abi3.so": "".join(
        f"ELF file  {n:3}: _C_stable_libtorch.abi3.{n}.{name}.cubin\n"
        for n, name in enumerate(("sm_75", "sm_90a", "sm_100", "sm_120"), 1)
    ) + "PTX file    1: _C_stable_libtorch.abi3.1.sm_80.ptx\n",
    FA3: "ELF file    1: _vllm_fa3_C.abi3.1.sm_90a.cubin\n",
    MODULE: "ELF file    1: tmp.1.sm_103a.cubin\n",
}  # fmt: skip
HOPPER = {FA3: OtherGpus(frozenset({"sm_90a"}), "for Hopper")}


def problems(changes: Mapping[str, str | None] | None = None, *, bare: bool = False) -> list[str]:
    """Judge the real listings with some replaced, by the name of the file without its ending."""
    listed = {path: text for path, text in REAL.items() if not (bare and path == MODULE)}
    for name, text in (changes or {}).items():
        (path,) = (path for path in REAL if Path(path).name.split(".")[0] == name)
        if text is None:
            del listed[path]
        else:
            listed[path] = text
    found = {path: parse_listing(text, Path(path)) for path, text in listed.items()}
    owner = {path: OWN[path.partition("/")[0]] for path in found}
    return judge(OWN.values(), owner, found, HOPPER, {"flashinfer"} if bare else ())


def elf(name: str) -> str:
    return f"ELF file    1: x.1.{name}.cubin\n"


@pytest.mark.parametrize("bare", [False, True])
def test_the_real_listings_are_green_in_both_modes(bare: bool) -> None:
    assert problems(bare=bare) == []


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("_C_stable_libtorch", "sm_100a", "sm_100 or sm_100f or compute_100f"),
        ("_C_stable_libtorch", "sm_90a", "sm_100 or sm_100f or compute_100f"),
        ("fused_moe_trtllm_sm100", "sm_100", "sm_103a"),
        ("cuda_ops", "sm_100a", "sm_100 or sm_100f or sm_103 or sm_103a or sm_103f"),
    ],
)
def test_code_for_another_gpu_alone_is_named(name: str, code: str, expected: str) -> None:
    (line,) = problems({name: elf(code)})
    assert f"expected device code for {expected}, found {code}" in line


def test_a_component_without_any_device_code_is_named() -> None:
    assert problems({"cuda_ops": None, "lmcache_redis": None}) == [
        "lmcache: expected device code, found none in any library"
    ]
    assert problems({"cuda_ops": REAL["lmcache/lmcache_redis.so"]}) == [
        "lmcache: expected device code, found none in any library"
    ]
    assert problems({"fused_moe_trtllm_sm100": None}) == [
        "flashinfer: expected device code, found none in any library"
    ]


def test_a_compiled_library_where_there_should_be_sources_alone_is_named() -> None:
    found = {path: parse_listing(text, Path(path)) for path, text in REAL.items()}
    owner = {path: OWN[path.partition("/")[0]] for path in found}
    assert judge(OWN.values(), owner, found, HOPPER, {"flashinfer"}) == [
        f"flashinfer: expected sources alone, found {MODULE}"
    ]


@pytest.mark.parametrize("code", ["sm_100", "sm_80"])
def test_an_exception_that_the_library_outgrew_is_named(code: str) -> None:
    assert problems({"_vllm_fa3_C": elf(code)}) == [
        f"{FA3}: expected device code for sm_90a, found {code}"
    ]


def test_an_exception_for_a_library_that_is_gone_is_named() -> None:
    assert problems({"_vllm_fa3_C": None}) == [
        f"{FA3}: an exception that no library with device code needs"
    ]


def test_every_exception_has_a_reason_and_lacks_what_its_component_promises() -> None:
    for path, exception in EXCEPTIONS.items():
        assert exception.reason
        assert not exception.code & set(OWN[path.partition("/")[0]].device_code)


def test_the_line_says_how_many_libraries_hold_which_code() -> None:
    found = {path: parse_listing(text, Path(path)) for path, text in REAL.items()}
    owner = {path: OWN[path.partition("/")[0]] for path in found}
    assert summary(OWN.values(), owner, found) == (
        "lmcache: 1 with sm_103a; 1 without any. vllm: 1 with excepted: sm_90a; 1 with sm_100. "
        "flashinfer: 1 with sm_103a"
    )
    assert summary([OWN["flashinfer"]], {}, {}) == "flashinfer: sources alone"


def test_a_library_that_the_wheel_did_not_bring_is_named() -> None:
    files = {"toy/__init__.py": "", "toy/native.so": "", "toy/data/x.so.h": ""}
    site = "opt/headrace/lib/python3.11/site-packages"
    paths = [f"{site}/{path}" for path in (*files, "other/x.so", "toy/data/y.so.h")]
    wheel = WheelRecord("toy", "1", files)
    assert unrecorded(paths, wheel) == []
    for stray in ("toy/stray.so", "toy/data/libx.so.12"):
        assert unrecorded([*paths, f"{site}/{stray}"], wheel) == [
            f"/{site}/{stray}: a library that toy did not bring"
        ]


def test_files_come_out_of_the_layers_one_at_a_time_as_a_container_sees_them(
    tmp_path: Path,
) -> None:
    layers = [
        layer_of({"site/a.so": "old a", "site/b.so": "b", "site/c.so": "c"}),
        layer_of({"site/a.so": "new a"}),
    ]
    write_image(tmp_path / "image", layers, {})
    wanted = {
        f"site/{name}.so": hashlib.sha256(text.encode()).hexdigest()
        for name, text in {"a": "new a", "b": "b"}.items()
    }
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    image = read_layout(tmp_path / "image")
    seen = {}
    for path, copy in each_file(tmp_path / "image", image, wanted, scratch):
        assert [file.name for file in scratch.iterdir()] == [copy.name]
        seen[path] = copy.read_text()
    assert seen == {"site/a.so": "new a", "site/b.so": "b"}
    assert list(scratch.iterdir()) == []
    with pytest.raises(ImageError, match=r"/site/c\.so: expected it in a layer, found none"):
        list(each_file(tmp_path / "image", image, {"site/c.so": "0" * 64}, scratch))


def test_without_a_toolkit_the_check_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="expected the CUDA toolkit, found none; run"):
        existing_toolkit(Layout(tmp_path))


@pytest.mark.parametrize("gone", ["python", "nvcc", "cuobjdump"])
def test_a_toolkit_of_which_a_part_was_removed_is_none(tmp_path: Path, gone: str) -> None:
    home = "lib/python3.11/site-packages/nvidia/cu13/bin"
    programs = {"python": "bin/python", "nvcc": f"{home}/nvcc", "cuobjdump": f"{home}/cuobjdump"}
    for path in ("headrace-lock", *programs.values()):
        place = tmp_path / "build/cuda" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")
    assert existing_toolkit(Layout(tmp_path)).whole
    (tmp_path / "build/cuda" / programs[gone]).unlink()
    with pytest.raises(MachineError, match="expected the CUDA toolkit, found none; run"):
        existing_toolkit(Layout(tmp_path))
