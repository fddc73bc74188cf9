"""What an image for GPUs may hold, by the paths of its layers; each planted fault is named."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.engine.kernel_module import RECORD
from headrace.errors import ConfigurationError, PublishError
from headrace.pipeline.checks import CHECKS, SUITES
from headrace.pipeline.evidence import MANDATORY_CHECKS, MANDATORY_SUITES, Check, Suite, overall
from headrace.pipeline.layer_rules import Kind, judge_path, known
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import load_pins
from headrace.pipeline.proofs_module import built_record, disagreements, strays
from headrace.pipeline.proofs_sm103 import OPTIONAL, copies, missing_tools
from headrace.pipeline.report import refuse_unless_publishable
from headrace.pipeline.subject import Subject
from headrace.pipeline.toolchain import TOOLCHAIN
from tests.pipeline.test_report import report

SITE = "opt/headrace/lib/python3.11/site-packages"
ONE_OF_EACH = [
    *(f"{SITE}/torch/lib/{name}.so" for name in ("libtorch", "libtorch_cpu", "libtorch_cuda")),
    *(f"{SITE}/torch/lib/{name}.so" for name in ("libtorch_python", "libc10", "libc10_cuda")),
    f"{SITE}/nvidia/cu13/lib/libcudart.so.13",
    f"{SITE}/nvidia/cu13/lib/libcudart.so",
    f"{SITE}/.nixl_cu13.mesonpy.libs/libnixl.so",
    f"{SITE}/.nixl_cu13.mesonpy.libs/libnixl_common.so",
    f"{SITE}/torch/lib/libtorch_global_deps.so",
]
TOOLS = {
    "compiler": [
        f"{SITE}/nvidia/cu13/bin/nvcc", f"{SITE}/nvidia/cu13/nvvm/bin/cicc",
        f"{SITE}/nvidia/cu13/bin/cudafe++", f"{SITE}/nvidia/cu13/bin/ptxas",
        f"{SITE}/triton/backends/nvidia/bin/ptxas", "usr/bin/g++", "usr/bin/c++",
        "usr/bin/x86_64-linux-gnu-gcc-12", "usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", "usr/bin/ld",
        "usr/bin/x86_64-linux-gnu-as",
    ],
    "build remains": [
        "usr/lib/x86_64-linux-gnu/crt1.o", "usr/lib/gcc/x86_64-linux-gnu/12/crtbeginS.o",
        "usr/lib/python3.11/config-3.11-x86_64-linux-gnu/python.o",
    ],
}  # fmt: skip
MODULE = "fused_moe_trtllm_sm100"
PLACE = f"flashinfer/data/aot/{MODULE}/{MODULE}.so"
JIT: Mapping[str, object] = {"module": MODULE, "path": None, "sha256": None, "sources": {}}
AOT: Mapping[str, object] = {"module": MODULE, "path": PLACE, "sha256": "a" * 64, "sources": {}}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"mode": "jit"}', "[" * 100_000], ids=["", "{}", "[]", "mode", "deep"]
)
def test_a_broken_record_in_the_wheel_ends_in_one_line(text: str, tmp_path: Path) -> None:
    pins = Path(__file__).resolve().parents[2] / "pins.toml"
    (tmp_path / "pins.toml").write_bytes(pins.read_bytes())
    layout = Layout(tmp_path)
    wheel = layout.wheels("sm103") / load_pins(pins).get("flashinfer").file
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(RECORD, text)
    subject = Subject(layout, "sm103", "sha256:" + "0" * 64, tmp_path, "x:1", "1", "b", "a")
    with pytest.raises(ConfigurationError, match=r"expected a wheel with flashinfer/.*wheels") as e:
        built_record(subject)
    assert str(e.value).startswith(f"{wheel}: ")
    assert "\n" not in str(e.value)


def test_one_copy_of_each_library_is_green() -> None:
    assert copies(ONE_OF_EACH) == []


@pytest.mark.parametrize(
    ("path", "stem"),
    [
        (f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12", "libcudart"),
        (f"{SITE}/nvidia/cu13/lib/libcudart.so.12", "libcudart"),
        (f"{SITE}/other.libs/libcudart-8774224f.so.12.4.127", "libcudart"),
        (f"{SITE}/.nixl_cu12.mesonpy.libs/libnixl.so", "libnixl"),
        ("usr/local/lib/libnixl.so", "libnixl"),
        ("opt/more/libtorch_cpu.so", "libtorch_cpu"),
        ("opt/more/libc10.so", "libc10"),
    ],
)
def test_a_second_copy_or_major_is_named(path: str, stem: str) -> None:
    (line,) = copies([*ONE_OF_EACH, path])
    assert line.startswith(f"{stem}: expected one copy in the image, found ") and path in line


def test_a_library_that_is_gone_is_named() -> None:
    without = [path for path in ONE_OF_EACH if "libnixl" not in path]
    assert copies(without) == ["libnixl: expected one copy in the image, found none"]


@pytest.mark.parametrize("kind", ["compiler", "build remains"])
def test_the_locked_toolchain_is_allowed_in_this_flavor_and_broken_rules_in_no_other(
    kind: str,
) -> None:
    for path in TOOLS[kind]:
        broken = dict(judge_path(path, executable=True))
        assert list(broken) == [kind], path
        (found,) = broken
        assert known(found, path, TOOLCHAIN["sm103"]), path
        assert not known(found, path, TOOLCHAIN["cpu"]), path


@pytest.mark.parametrize(
    "path",
    ["usr/local/bin/gcc", "opt/more/bin/nvcc", "usr/bin/clang", "usr/bin/gcc-13", "usr/bin/cmake",
     "usr/lib/gcc/x86_64-linux-gnu/13/cc1", f"{SITE}/other/bin/ptxas", "usr/bin/make",
     "src/kernel.o", "usr/lib/x86_64-linux-gnu/kernel.o"],
)  # fmt: skip
def test_a_compiler_or_an_object_beside_the_toolchain_is_named(path: str) -> None:
    ((kind, _),) = judge_path(path, executable=True)
    assert not known(kind, path, TOOLCHAIN["sm103"])


@pytest.mark.parametrize("kind", ["compiler", "build remains"])
def test_a_toolchain_that_lacks_a_part_is_named(kind: Kind) -> None:
    assert missing_tools(TOOLS[kind], "sm103", kind) == []
    for (of, pattern), why in TOOLCHAIN["sm103"].items():
        if of == kind:
            left = [path for path in TOOLS[kind] if not re.fullmatch(pattern, path)]
            assert missing_tools(left, "sm103", of) == [f"expected {why} ({pattern}), found none"]


@pytest.mark.parametrize("record", [JIT, AOT])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        (f"{SITE}/flashinfer_jit_cache/__init__.py", "of the package of stock modules"),
        (f"{SITE}/flashinfer_jit_cache-0.7.0.post1+cu130.dist-info/RECORD",
         "of the package of stock modules"),
        (f"{SITE}/flashinfer_jit_cache/jit_cache/{MODULE}/{MODULE}.so",
         "of the package of stock modules"),
        (f"opt/more/{MODULE}.so", "a compiled module that nobody recorded"),
        (f"opt/more/{MODULE}_0123456789abcdef.so", "a compiled module that nobody recorded"),
        ("home/headrace/.cache/flashinfer/0.7.0.post1/103a/cached_ops/x/build.ninja",
         "FlashInfer's cache of what it compiled"),
    ],
)  # fmt: skip
def test_whatever_could_be_taken_for_the_module_is_named(
    record: Mapping[str, object], path: str, why: str
) -> None:
    assert strays([f"{SITE}/{MODULE}.cu", path], record) == [f"/{path}: {why}"]


def test_the_recorded_module_is_no_stray_in_mode_aot_alone() -> None:
    assert strays([f"{SITE}/{PLACE}"], AOT) == []
    assert strays([f"{SITE}/{PLACE}"], JIT) == [
        f"/{SITE}/{PLACE}: a compiled module that nobody recorded"
    ]


def test_a_record_that_its_own_wheel_contradicts_is_named() -> None:
    record = {**AOT, "sources": {"flashinfer/data/csrc/kernel.cu": "b" * 64}}
    files = {PLACE: "a" * 64, "flashinfer/data/csrc/kernel.cu": "b" * 64}
    assert disagreements(record, files) == []
    assert disagreements(record, {**files, PLACE: "c" * 64}) == [
        f"{PLACE}: expected sha256 {'a' * 64}, as recorded for the module, found {'c' * 64} in "
        "the wheel"
    ]
    del files["flashinfer/data/csrc/kernel.cu"]
    assert "found no such file in the wheel" in disagreements(record, files)[0]


@pytest.mark.parametrize("flavor", ["cpu", "sm103"])
def test_every_mandatory_part_of_a_flavor_is_written_and_nothing_else_runs(flavor: str) -> None:
    assert set(CHECKS[flavor]) == set(MANDATORY_CHECKS[flavor])
    assert next(iter(CHECKS[flavor])) == "digest"
    assert set(SUITES[flavor]) == set(MANDATORY_SUITES[flavor])


def test_every_optional_extension_says_why() -> None:
    assert all(OPTIONAL.values())


def test_an_image_that_no_machine_served_cannot_be_published() -> None:
    """Without a GPU two parts are void, and void is not green."""
    checks = tuple(
        Check(name=name, verdict="void" if name == "starts-offline" else "green", detail="x",
              seconds=0)
        for name in MANDATORY_CHECKS["sm103"]
    )  # fmt: skip
    suites: tuple[Suite, ...] = report().suites
    assert overall("sm103", checks, suites) == "void"
    made = report(flavor="sm103", checks=checks, verdict="void")
    with pytest.raises(PublishError, match="starts-offline is void"):
        refuse_unless_publishable(made, made.image)
    green = tuple(check.model_copy(update={"verdict": "green"}) for check in checks)
    whole = report(flavor="sm103", checks=green)
    refuse_unless_publishable(whole, whole.image)
    for name in ("device-code", "kernel-module", "symbols", "offline-imports"):
        left = tuple(check for check in green if check.name != name)
        with pytest.raises(PublishError, match=f"expected check {name}, which was skipped"):
            refuse_unless_publishable(report(flavor="sm103", checks=left), whole.image)
