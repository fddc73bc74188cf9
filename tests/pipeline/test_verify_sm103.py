"""An image for GPUs is proved where none is; what needs one is void, and says why."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import PublishError
from headrace.pipeline import gpu, proofs_device, proofs_sm103, verify
from headrace.pipeline.checks import CHECKS, SUITES
from headrace.pipeline.proofs_device import OtherGpus
from headrace.pipeline.publish import refuse_unlocked
from headrace.pipeline.subject import RefutedError, Subject, UnprovedError, subject_of
from tests.kernel.loader_site import MODULE, SOURCE
from tests.pipeline.gpu_image import FLASHINFER, PLACE, GpuImage, holds
from tests.pipeline.python_image import SITE
from tests.pipeline.sample_image import Entry
from tests.proof.test_symbols import build

pytestmark = pytest.mark.usefixtures("daemon", "small_engine")


@pytest.fixture
def small_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy stands for the engine, and its extension for the libraries that there is one of."""
    monkeypatch.setattr(proofs_sm103, "PRELOAD", ["toy.native"])
    monkeypatch.setattr(proofs_sm103, "GLOBAL", [])
    monkeypatch.setattr(proofs_sm103, "SINGLE", ["native", "libcudart"])
    monkeypatch.setattr(proofs_sm103, "ONE_FILE", ["libnixl"])
    monkeypatch.setattr(proofs_sm103, "OPTIONAL", {})
    monkeypatch.setattr(proofs_sm103, "IMPORTS", ["toy.native", "flashinfer"])
    monkeypatch.setattr(proofs_device, "EXCEPTIONS", {})
    monkeypatch.setattr(gpu, "QUERY", ("no-nvidia-smi",))


@pytest.fixture(params=["jit", "aot"])
def image(tmp_path: Path, interpreter: bytes, request: pytest.FixtureRequest) -> Iterator[GpuImage]:
    made = GpuImage(tmp_path / "checkout", interpreter, request.param)
    yield made
    record = made.layout.image("sm103").with_suffix(".json")
    reference = json.loads(record.read_text())["reference"]
    # What never was loaded --force takes as done.
    subprocess.run(["docker", "rmi", "--force", reference], timeout=60, check=True)


def judge(subject: Subject, *names: str) -> dict[str, str]:
    """Return verdict and detail of checks, in one line each."""
    done = verify.run_checks(subject, {name: CHECKS["sm103"][name] for name in names})
    return {check.name: f"{check.verdict}: {check.detail}" for check in done if check.name in names}


INSIDE = ("digest", "extensions", "symbols", "kernel-module", "offline-imports", "device-code")


def test_what_needs_no_gpu_is_green_and_what_does_is_void(image: GpuImage) -> None:
    image.build()
    with subject_of(image.layout, "sm103") as subject:
        said = judge(subject, *INSIDE, "starts-offline")
        suites = verify.run_suites(subject, SUITES["sm103"])
    loaded = {"jit": 1, "aot": 2}[image.mode]
    assert said["extensions"].startswith(
        f"green: {loaded} modules loaded with all symbols bound; 1 need the driver"
    )
    assert said["symbols"].startswith("green: ") and ", 1 of them the driver's" in said["symbols"]
    assert said["kernel-module"].startswith(f"green: {image.mode}: ")
    assert said["offline-imports"] == "green: toy.native, flashinfer ask the network for nothing"
    code = {"jit": "sources alone", "aot": "1 with sm_103a"}
    assert said["device-code"] == f"green: flashinfer: {code[image.mode]}"
    why = {
        "jit": "mode jit: the first start compiles",
        "aot": "an engine of this flavor needs a GPU",
    }
    assert said["starts-offline"].startswith(f"void: {why[image.mode]}")
    assert "\n" not in said["starts-offline"]
    assert [(suite.name, suite.verdict) for suite in suites] == [
        ("missing-key", "green"), ("needle", "void")
    ]  # fmt: skip
    assert suites[1].detail.startswith("it asks a live engine of this flavor")


def test_each_fault_that_is_planted_is_red(image: GpuImage, tmp_path: Path) -> None:
    build(tmp_path / "stock.so", holds("sm_100a") + "int stock(void) { return 0; }")
    build(tmp_path / "bad.so", "extern int nobody_has_this(void); int call(void) "
          "{ return nobody_has_this(); }", "-Wl,-z,lazy")  # fmt: skip
    image.build(
        planted={
            f"{SITE}/{PLACE}": (tmp_path / "stock.so").read_bytes(),
            f"{SITE}/{SOURCE}": "stock",
            f"{SITE}/toy/gpu.so": (tmp_path / "bad.so").read_bytes(),
            f"{SITE}/toy/native.py": "import socket\ntry: socket.gethostbyname('x.invalid')\n"
            "except OSError: pass\n",
            f"{SITE}/toy/.wh.native.so": "",
            "usr/local/bin/nvcc": Entry(mode=0o755),
            "opt/one/libnixl.so": "",
            "opt/two/libnixl.so": "",
        }
    )
    with subject_of(image.layout, "sm103") as subject:
        said = judge(
            subject, "digest", "no-compiler", "symbols", "kernel-module", "offline-imports",
            "libraries", "device-code", "packaged-files",
        )  # fmt: skip
    assert "/usr/local/bin/nvcc: a compiler" in said["no-compiler"]
    assert "gpu.so: undefined symbol nobody_has_this" in said["symbols"]
    assert "toy.native asks the network for x.invalid" in said["offline-imports"]
    assert "libnixl: expected one copy in the image, found /opt/one" in said["libraries"]
    assert "expected sha256" in said["packaged-files"]
    if image.mode == "jit":
        assert f"{MODULE}.so: a compiled module that nobody recorded" in said["kernel-module"]
        stray = f"{PLACE}: a library that flashinfer-python did not bring"
        assert stray in said["device-code"]
    else:
        assert f"{SOURCE}: expected sha256" in said["kernel-module"]
        assert f"{PLACE}: expected device code for sm_103a, found sm_100a" in said["device-code"]
    red = {name for name, text in said.items() if text.startswith("red: ")}
    assert red == set(said) - {"digest"}


def test_a_label_of_the_other_mode_is_red(image: GpuImage) -> None:
    image.build(config={"Labels": {"org.headrace.kernel-module": "none"}})
    with pytest.raises(RefutedError, match=f"kernel-module: expected {image.mode}, found none"):
        CHECKS["sm103"]["kernel-module"](image.subject())


@pytest.mark.parametrize("image", ["jit"], indirect=True)
def test_an_import_that_lacks_the_driver_alone_makes_the_check_void(
    image: GpuImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs_sm103, "IMPORTS", ["toy.native", "toy.needs"])
    text = "import ctypes, pathlib\nctypes.CDLL(str(pathlib.Path(__file__).with_name('gpu.so')))\n"
    image.build(planted={f"{SITE}/toy/needs.py": text})
    with (
        subject_of(image.layout, "sm103") as subject,
        pytest.raises(UnprovedError, match=r"toy\.needs does not import without a driver \(OSErr"),
    ):
        CHECKS["sm103"]["offline-imports"](subject)


@pytest.mark.parametrize("image", ["aot"], indirect=True)
def test_an_exception_that_nothing_needs_is_red(
    image: GpuImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = {"toy/native.so": OtherGpus(frozenset({"sm_90a"}), "for Hopper")}
    monkeypatch.setattr(proofs_device, "EXCEPTIONS", stale)
    image.build()
    with pytest.raises(RefutedError, match="an exception that no library with device code needs"):
        CHECKS["sm103"]["device-code"](image.subject())


@pytest.mark.parametrize("image", ["aot"], indirect=True)
def test_a_pin_that_is_not_locked_keeps_the_image_from_being_published(image: GpuImage) -> None:
    """Also one that only a stage of the build uses."""
    image.build()
    refuse_unlocked(image.layout, "sm103")
    cubin = FLASHINFER.replace("[flashinfer]", "[flashinfer-cubin]").replace("0" * 64, "")
    text = image.layout.pins.read_text() + cubin.replace("patched = true", 'only-for = "wheels"')
    image.layout.pins.write_text(text)
    with pytest.raises(PublishError, match="expected a sha256 for flashinfer-cubin, found none"):
        refuse_unlocked(image.layout, "sm103")
