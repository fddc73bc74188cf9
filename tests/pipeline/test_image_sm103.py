"""The image of flavor sm103: what differs from that of cpu, with tiny wheels and no GPU."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from headrace.engine.kernel_module import RECORD
from headrace.errors import ConfigurationError, ImageError, WheelError
from headrace.pipeline import lockfiles
from headrace.pipeline.bake import make_plan
from headrace.pipeline.contexts import stage_contexts
from headrace.pipeline.debian import debs_folder, fetch_debian
from headrace.pipeline.flashinfer import read_mode
from headrace.pipeline.image import build_image
from headrace.pipeline.layout import Layout
from headrace.pipeline.oci import blob_path, read_layout
from headrace.pipeline.revision import Revision
from tests.pipeline.test_image import CHECKOUT, make_checkout, members, nothing

BASE = f"registry.example/debian@sha256:{'0' * 64}"
FLASHINFER = "flashinfer_python-0.7.0.post1-py3-none-any.whl"
TOOLKIT = {
    "nvidia/cu13/lib/libcudart.so.13": "x",
    "nvidia/cu13/include/cuda.h": "#define cuInit cuInit_v2\nCUresult CUDAAPI cuInit(int flags);\n",
}
SITE = "opt/headrace/lib/python3.11/site-packages"


def pack(folder: Path, file: str, more: dict[str, str] | None = None) -> str:
    """Write a wheel that pip installs; return its sha256."""
    name, version = file.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(more or {}),
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / file, "w") as zipped:
        for path, text in files.items():
            zipped.writestr(zipfile.ZipInfo(path), text)
    return hashlib.sha256((folder / file).read_bytes()).hexdigest()


def lock(layout: Layout, **versions: str) -> None:
    """Put a wheel of each into the wheelhouse of sm103, and all of them into its lock."""
    lines = []
    for name, version in versions.items():
        more = TOOLKIT if name == "nvidia_cuda_runtime" else {}
        sha = pack(layout.wheelhouse("sm103"), f"{name}-{version}-py3-none-any.whl", more)
        lines.append(f"{name.replace('_', '-')}=={version} --hash=sha256:{sha}\n")
    (layout.locks / "sm103.txt").write_text("".join(lines))


def write_own_wheels(layout: Layout, mode: str = "jit") -> None:
    own = layout.wheels("sm103")
    pack(own, "lmcache-0.5.5+headrace.9-py3-none-any.whl")
    pack(own, "headrace-1.0-py3-none-any.whl")
    pack(own, FLASHINFER, {RECORD: json.dumps({"mode": mode})})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = make_checkout(tmp_path / "checkout")
    lock(
        made, torch="2.0", triton="3.0", nvidia_cuda_runtime="13.0", cuda_bindings="13.0",
        cupy_cuda13x="14.0", vllm="1.0", nixl_cu13="1.4", torch_extra="1.0", tritonic="1.0",
    )  # fmt: skip
    write_own_wheels(made)
    return made


def test_torch_and_cuda_are_one_layer_and_our_own_wheels_the_last(layout: Layout) -> None:
    folder = stage_contexts(layout, "sm103")
    held = {
        part: {path.name.split("-")[0] for path in (folder / part).glob("*.whl")}
        for part in ("torch", "engine", "headrace")
    }
    assert held == {
        "torch": {"torch", "triton", "nvidia_cuda_runtime", "cuda_bindings", "cupy_cuda13x"},
        "engine": {"vllm", "nixl_cu13", "torch_extra", "tritonic"},
        "headrace": {"headrace", "lmcache", "flashinfer_python"},
    }


def test_the_released_gpu_code_of_mode_aot_is_not_in_the_last_layer(layout: Layout) -> None:
    cubins = "flashinfer_cubin-0.7.0.post1-py3-none-any.whl"
    pack(layout.wheels("sm103"), cubins)
    folder = stage_contexts(layout, "sm103")
    assert [path.parent.name for path in folder.rglob(cubins)] == ["engine"]
    assert "flashinfer-cubin==0.7.0.post1" in (folder / "engine/requirements.txt").read_text()


def test_only_this_flavor_gets_a_compiler(layout: Layout) -> None:
    packages = {
        flavor: (stage_contexts(layout, flavor) / "debs/runtime.txt").read_text().split()
        for flavor in ("cpu", "sm103")
    }
    assert packages["cpu"] == ["python3", "libnuma1"]
    assert packages["sm103"] == [*packages["cpu"], "g++", "libpython3-dev"]


def test_without_our_own_flashinfer_there_is_no_image(layout: Layout) -> None:
    (layout.wheels("sm103") / FLASHINFER).unlink()
    with pytest.raises(ImageError, match=r"of flashinfer-python, .*wheels --flavor sm103`"):
        stage_contexts(layout, "sm103")


def test_the_stock_flashinfer_in_the_lock_is_refused(layout: Layout) -> None:
    lock(layout, torch="2.0", flashinfer_python="0.7.0.post1")
    with pytest.raises(ConfigurationError, match=r"sm103\.txt: expected no flashinfer-python"):
        stage_contexts(layout, "sm103")


@pytest.mark.parametrize("mode", ["jit", "aot"])
def test_the_plan_says_how_the_module_gets_in(layout: Layout, mode: str) -> None:
    write_own_wheels(layout, mode)
    plan = make_plan(layout, "sm103", BASE, Revision("f" * 40, 1))
    assert (plan.kernel_module, plan.version) == (mode, "0.5.5+headrace.9")
    assert FLASHINFER in plan.inputs
    assert make_plan(layout, "cpu", BASE, Revision("f" * 40, 1)).kernel_module == ""


def test_a_wheel_that_does_not_say_its_mode_gives_no_plan(layout: Layout) -> None:
    pack(layout.wheels("sm103"), FLASHINFER)
    with pytest.raises(WheelError, match=r"expected flashinfer/data/headrace-module\.json in it"):
        make_plan(layout, "sm103", BASE, Revision("f" * 40, 1))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"mode": "stock"}', "expected mode jit or aot, found 'stock'"),
        ('{"mode": null}', "expected mode jit or aot, found None"),
        ("[]", "in it, found list indices"),
        ("{", "in it, found Expecting property name"),
    ],
)
def test_a_broken_record_of_the_module_is_named(tmp_path: Path, text: str, found: str) -> None:
    pack(tmp_path, FLASHINFER, {RECORD: text})
    with pytest.raises(WheelError, match=found):
        read_mode(tmp_path / FLASHINFER)


def read(folder: Path, layer: str, name: str) -> bytes:
    """Return a file's bytes out of a layer."""
    data = gzip.decompress(blob_path(folder, layer).read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = tar.extractfile(name)
        assert found is not None
        return found.read()


@pytest.mark.timeout(900)
def test_the_image_has_a_toolkit_that_links_and_no_setting_of_a_cpu(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_debian(CHECKOUT)
    assert debs_folder(layout).is_dir()
    monkeypatch.setattr(lockfiles, "fetch_wheelhouse", nothing)
    built = build_image(layout, "sm103")
    image = read_layout(built.path, check_layers=True)
    assert image.labels["org.headrace.flavor"] == "sm103"
    assert image.labels["org.headrace.kernel-module"] == "jit"
    config = image.config["config"]
    settings = dict(pair.split("=", 1) for pair in config["Env"])
    assert settings["CUDA_HOME"] == f"/{SITE}/nvidia/cu13"
    assert settings["PYTHONHASHSEED"] == "0"
    assert not {"TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "VLLM_USE_AOT_COMPILE"} & {
        *settings
    }
    assert (config["User"], config["Entrypoint"]) == ("10001:10001", ["headrace", "serve"])
    held = {
        name.removeprefix("./"): member
        for layer in image.layers
        for name, member in members(built.path, layer).items()
    }
    home = f"{SITE}/nvidia/cu13"
    assert held[f"{home}/lib64"].linkname == "lib"
    assert held[f"{home}/lib/libcudart.so"].linkname == "libcudart.so.13"
    # The one that links use; a name that the loader asks for would hide the driver's.
    stub = f"{home}/lib/stubs/libcuda.so"
    assert [name for name in held if "libcuda.so" in name] == [stub]
    names = read(built.path, image.layers[2], stub).split(b"\0")
    assert {b"libcuda.so.1", b"cuInit", b"cuInit_v2"} <= set(names)
    assert "usr/bin/g++" in held
    assert "usr/include/python3.11/Python.h" in held
    assert not [name for name in held if "/.cache" in name]
    assert held["home/headrace"].uid == 10001
