"""Which module FlashInfer loads is asked of FlashInfer's own loader, with every trap set for it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.kernel_module import ModuleRecord
from headrace.errors import KernelModuleError
from headrace.proof.module import refused
from tests.kernel.loader_site import TORCH, TVM_FFI
from tests.kernel.toolchain import patched_tree
from tests.proof.conftest import Site
from tests.proof.test_symbols import build

MODULE = "fused_moe_trtllm_sm100"
PLACE = f"flashinfer/data/aot/{MODULE}/{MODULE}.so"
SYMBOL = "__tvm_ffi_trtllm_moe_activation_patch_id"
SOURCE = "flashinfer/data/csrc/kernel.cu"
VERSION = "0.7.0.post1"
# What that patch adds, made to do nothing.
RELEASE = b"from .core import JitSpecNvcc\ndef spec_type(name): return JitSpecNvcc, name\n"


class FlashInfer:
    """An installed FlashInfer of one mode, and the record that the build would have written."""

    def __init__(self, site: Site, mode: str) -> None:
        self.site, self.mode = site, mode
        self.folder = site.folder / "flashinfer"
        # FlashInfer's own choice of a module, as the series has it; the rest of the package has
        # nothing to do with it and needs a GPU's worth of other packages.
        for file in [*(patched_tree() / "flashinfer").glob("*.py"),
                     *(patched_tree() / "flashinfer/jit").glob("*.py")]:  # fmt: skip
            if file.name != "__init__.py":
                self.place(file.relative_to(patched_tree()).as_posix(), file.read_bytes())
        self.place("flashinfer/__init__.py", b"from .version import __version__\n")
        self.place("flashinfer/jit/__init__.py", b"")
        self.place("torch/__init__.py", TORCH.encode())
        self.place("tvm_ffi/__init__.py", TVM_FFI.encode())
        self.place(SOURCE, b"patched\n")
        self.about(VERSION)
        sha256 = self.compile(f"int {SYMBOL}(void) {{ return 1; }}") if mode == "aot" else None
        self.record = {
            "module": MODULE,
            "mode": mode,
            "path": PLACE if mode == "aot" else None,
            "sha256": sha256,
            "symbol": SYMBOL,
            "series_sha256": "a" * 64,
            "sources": {SOURCE: hashlib.sha256(b"patched\n").hexdigest()},
        }
        self.place("flashinfer/data/headrace-module.json", json.dumps(self.record).encode())

    def place(self, relative: str, data: bytes) -> None:
        path = self.site.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def about(self, version: str) -> None:
        info = self.site.folder / f"flashinfer_python-{VERSION}.dist-info"
        info.mkdir(exist_ok=True)
        text = f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n"
        (info / "METADATA").write_text(text)

    def compile(self, source: str) -> str:
        return build(self.site.folder / PLACE, source)

    def prove(self, **earlier: Any) -> dict[str, Any]:
        request = {
            "record": self.record, "version": VERSION, "architectures": "10.3a",
            "provider": "sm103a",
        }  # fmt: skip
        return self.site.prove("module", request, **earlier)

    def problems(self, **earlier: Any) -> list[str]:
        found: list[str] = self.prove(**earlier)["problems"]
        return [line.replace(f"{self.site.folder}/", "") for line in found]


@pytest.fixture(params=["aot", "jit"])
def either(site: Site, request: pytest.FixtureRequest) -> FlashInfer:
    return FlashInfer(site, request.param)


@pytest.fixture
def aot(site: Site) -> FlashInfer:
    return FlashInfer(site, "aot")


@pytest.fixture
def jit(site: Site) -> FlashInfer:
    return FlashInfer(site, "jit")


def stock(folder: Path, architecture: str = "sm100f") -> Path:
    """Install a package that offers the stock module, as flashinfer-jit-cache does."""
    library = folder / "flashinfer_jit_cache/cache" / MODULE / f"{MODULE}.so"
    build(library, "int stock(void) { return 0; }")
    (folder / "flashinfer_jit_cache/__init__.py").write_text(
        "import pathlib, types\n"
        f"__version__ = {VERSION + '+cu130'!r}\n"
        "def get_jit_cache_providers():\n"
        "    return [types.SimpleNamespace(provider_id='stock', distribution='stock',\n"
        f"        version=__version__, cuda_architectures=[{architecture!r}],\n"
        f"        modules=[{MODULE!r}], jit_cache_dir=pathlib.Path(__file__).parent / 'cache')]\n"
    )
    return library


def test_the_recorded_module_is_green_with_a_stock_one_in_front(either: FlashInfer) -> None:
    answer = either.prove()
    assert answer["problems"] == []
    assert answer["facts"]["mode"] == either.mode and answer["facts"]["sources"] == 1


def test_an_installed_stock_module_is_named_and_so_is_what_would_be_loaded(
    either: FlashInfer, tmp_path: Path
) -> None:
    library = stock(tmp_path / "stock")
    found = either.problems(earlier=[tmp_path / "stock"])
    package = library.parents[2] / "__init__.py"
    assert f"{package}: a package of stock modules" in found
    refuses = any(line.startswith("start-up refuses the image as it is") for line in found)
    assert refuses == (either.mode == "jit")
    assert not any("expected to load" in line for line in found), "it is offered, and not taken"


def test_a_flashinfer_that_takes_a_stock_module_is_named(jit: FlashInfer, tmp_path: Path) -> None:
    """Of the release alone, without the patch that loads the recorded module or none."""
    jit.place("flashinfer/jit/recorded_module.py", RELEASE)
    library = stock(tmp_path / "stock")
    found = jit.problems(earlier=[tmp_path / "stock"])
    assert f"flashinfer: expected to load no compiled module, found {library}" in found
    assert any("with a stock module in front: expected to load no" in line for line in found)


def test_a_module_that_nobody_recorded_is_what_flashinfer_would_load(jit: FlashInfer) -> None:
    jit.compile("int stock(void) { return 0; }")
    jit.place("flashinfer/jit/recorded_module.py", RELEASE)
    assert f"flashinfer: expected to load no compiled module, found {PLACE}" in jit.problems()


def test_a_module_of_another_build_is_named(aot: FlashInfer) -> None:
    found = aot.compile(f"int {SYMBOL}(void) {{ return 2; }}")
    expected = aot.record["sha256"]
    assert f"{PLACE}: expected sha256 {expected}, found {found}" in aot.problems()


def test_a_module_without_the_symbol_is_named(aot: FlashInfer) -> None:
    aot.record["sha256"] = aot.compile("int stock(void) { return 0; }")
    aot.place("flashinfer/data/headrace-module.json", json.dumps(aot.record).encode())
    assert f"{PLACE}: expected it to export {SYMBOL}, found no such symbol" in aot.problems()


def test_a_module_that_is_gone_is_named(aot: FlashInfer) -> None:
    (aot.site.folder / PLACE).unlink()
    found = aot.problems()
    assert f"{PLACE}: expected the compiled module, found no file" in found
    assert any(line.startswith("start-up refuses the image as it is") for line in found)


def test_a_changed_source_is_named(either: FlashInfer) -> None:
    either.place(SOURCE, b"stock\n")
    wanted, found = (hashlib.sha256(text).hexdigest() for text in (b"patched\n", b"stock\n"))
    assert f"{SOURCE}: expected sha256 {wanted}, found {found}" in either.problems()


def test_a_version_with_a_suffix_is_named(either: FlashInfer) -> None:
    either.place("flashinfer/_build_meta.py", f'__version__ = "{VERSION}+headrace"\n'.encode())
    either.about(f"{VERSION}+headrace")
    assert either.problems() == [
        f"flashinfer {where}: expected {VERSION}, found {VERSION}+headrace"
        for where in ("metadata", "__version__")
    ]


def test_modules_that_an_earlier_start_compiled_are_named(jit: FlashInfer) -> None:
    cache = jit.site.folder.parent / ".cache/flashinfer"
    cache.mkdir(parents=True)
    assert f"{cache}: modules that an earlier start compiled" in jit.problems()


def test_a_record_of_another_build_is_named(either: FlashInfer) -> None:
    either.record["series_sha256"] = "b" * 64
    assert either.problems() == [
        f"record of the module: series_sha256: expected {'b' * 64}, found {'a' * 64}"
    ]


def test_a_record_that_is_gone_is_named(either: FlashInfer) -> None:
    (either.folder / "data/headrace-module.json").unlink()
    (found,) = either.problems()
    assert found.startswith("flashinfer/data/headrace-module.json: expected a record of the module")


def test_a_flashinfer_that_does_not_import_proves_nothing(either: FlashInfer) -> None:
    either.place("flashinfer/version.py", b"raise OSError('libcuda.so.1 is not there')\n")
    request = {"record": either.record, "version": VERSION, "architectures": "10.3a",
               "provider": "sm103a"}  # fmt: skip
    done = either.site.run(["module"], json.dumps(request))
    assert done.returncode == 1 and done.stdout == ""
    assert "flashinfer's loader cannot be asked: OSError: libcuda.so.1" in done.stderr


@pytest.mark.parametrize(
    ("status", "front", "problem"),
    [
        (0, False, ""),
        (KernelModuleError.exit_code, True, ""),
        (0, True, f"start-up: expected to refuse a stock {MODULE} in front, found it let pass"),
        (KernelModuleError.exit_code, False, "start-up refuses the image as it is: said"),
    ],
)
def test_a_start_must_refuse_a_stock_module_in_front_and_nothing_else(
    status: int, front: bool, problem: str
) -> None:
    record = ModuleRecord(MODULE, "jit", None, None, SYMBOL, "a" * 64, {})
    done = subprocess.CompletedProcess("start", status, "", "said\n")
    assert refused(done, record, front=front) == ([problem] if problem else [])


def test_a_start_that_breaks_proves_nothing() -> None:
    record = ModuleRecord(MODULE, "jit", None, None, SYMBOL, "a" * 64, {})
    with pytest.raises(RuntimeError, match="start-up ended with status 1: said"):
        refused(subprocess.CompletedProcess("start", 1, "", "said\n"), record, front=True)
