"""The committed Python locks: complete, hashed, hostless, and of one mind with the pins."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from headrace.errors import ConfigurationError, SourceError
from headrace.pipeline import lockfiles
from headrace.pipeline.layout import Layout
from headrace.pipeline.lockfiles import fetch_wheelhouse, lmcache_requirements
from headrace.pipeline.pins import FLAVORS, load_pins
from headrace.pipeline.records import exclusions

LAYOUT = Layout.find()
LOCKS = ["cpu", "dev", "sm103", "sm103-build"]


def entries(name: str) -> dict[str, tuple[str, set[str]]]:
    """Return distribution → (version, sha256 of its files) of a lock."""
    text = (LAYOUT.locks / f"{name}.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            words = line.split()
            project, version = words[0].split("==")
            found[project] = (version, {w.removeprefix("--hash=sha256:") for w in words[1:]})
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_has_hashes_and_no_host(name: str) -> None:
    text = (LAYOUT.locks / f"{name}.txt").read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text)
    for project, (_, hashes) in entries(name).items():
        assert hashes, project
        assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in hashes), project


@pytest.mark.parametrize("flavor", FLAVORS)
def test_the_image_lock_holds_the_pins_and_not_what_is_excluded(flavor: str) -> None:
    lock = entries(flavor)
    for pin in load_pins(LAYOUT.pins).of_flavor(flavor):
        if pin.kind in ("pypi wheel", "pytorch cpu") and not pin.patched:
            version, hashes = lock[pin.name]
            assert version == pin.version
            assert pin.sha256 in hashes
    # These get into the image as our own wheels, and the stock one must not lie beside them.
    assert not {"lmcache", "flashinfer-python", "flashinfer-jit-cache"} & set(lock)
    excluded = exclusions(LAYOUT, flavor)
    assert {"torchvision", "torchaudio", "torchcodec"} <= set(excluded)
    assert not set(excluded) & set(lock)


def test_a_cpu_image_holds_nothing_of_cuda_and_an_sm103_image_one_release_of_it() -> None:
    assert not [name for name in entries("cpu") if name.startswith("nvidia-") or name == "triton"]
    lock = entries("sm103")
    named = [name for name in lock if re.search(r"cu(da)?-?1\d", name)]
    assert {name for name in named if not re.search(r"cu(da)?13", name)} == set()
    # The libraries that name no release in their names are those of torch's.
    assert lock["nvidia-cuda-runtime"][0].startswith("13.0.")
    assert lock["nvidia-cuda-nvcc"][0].startswith("13.0.")
    assert [name for name in lock if name.startswith("nixl")] == ["nixl", "nixl-cu13"]


def test_lmcache_is_compiled_with_the_versions_that_it_runs_beside() -> None:
    image, toolkit = entries("sm103"), entries("sm103-build")
    shared = set(image) & set(toolkit)
    assert {"apache-tvm-ffi", "numpy", "nvidia-cuda-nvcc", "nvidia-cuda-runtime"} <= shared
    assert {p: image[p][0] for p in shared} == {p: toolkit[p][0] for p in shared}
    # What a GPU-less build has no use for, or what its pin brings.
    assert not {"triton", "torch"} & set(toolkit)


def test_a_checkout_tests_with_the_versions_that_the_image_holds() -> None:
    image, checkout = entries("cpu"), entries("dev")
    shared = set(image) & set(checkout)
    assert {"torch", "numpy", "transformers", "valkey"} <= shared
    assert {p: image[p][0] for p in shared} == {p: checkout[p][0] for p in shared}


@pytest.mark.parametrize("flavor", FLAVORS)
def test_the_image_lock_satisfies_lmcache(flavor: str) -> None:
    lock = entries(flavor)
    for text in lmcache_requirements(LAYOUT, flavor):
        requirement = Requirement(text)
        version = lock[requirement.name.lower().replace("_", "-")][0]
        assert requirement.specifier.contains(version, prereleases=True), text


def test_the_cuda_build_of_lmcache_asks_for_more() -> None:
    names = [Requirement(text).name for text in lmcache_requirements(LAYOUT, "sm103")]
    assert {"cupy-cuda13x", "cuda-python"} <= set(names)
    assert not {"cupy-cuda13x", "cuda-python"} & {
        Requirement(text).name for text in lmcache_requirements(LAYOUT, "cpu")
    }


def checkout(tmp_path: Path, lock: str) -> Layout:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "cpu.txt").write_text(lock)
    shutil.copy(LAYOUT.pins, tmp_path)
    return Layout(tmp_path)


def test_a_wheel_that_does_not_match_its_hash_is_refused(tmp_path: Path) -> None:
    layout = checkout(tmp_path, f"six==1.17.0 --hash=sha256:{'00' * 32}\n")
    with pytest.raises(SourceError, match=r"wheelhouse-cpu\.log"):
        fetch_wheelhouse(layout, "cpu")
    assert list(layout.wheelhouse("cpu").glob("*.whl")) == []


def test_a_missing_lock_and_an_unknown_flavor_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cpu\.txt: expected the lock"):
        fetch_wheelhouse(Layout(tmp_path), "cpu")
    with pytest.raises(ConfigurationError, match="found 'tpu'"):
        fetch_wheelhouse(Layout(tmp_path), "tpu")


def test_a_pin_brings_its_own_wheel_and_pip_is_asked_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(lockfiles, "call", lambda words, **more: asked.append(words[-1]))
    sha = hashlib.sha256(b"pinned").hexdigest()
    pin = f"==2.0 --hash=sha256:{sha}"
    layout = checkout(tmp_path, f"other==1.0 --hash=sha256:{'1' * 64}\ntorch{pin}\n")
    layout.pins.write_text(
        '[torch]\nversion = "2.0"\nkind = "pypi wheel"\nfile = "torch-2.0-py3-none-any.whl"\n'
        f'sha256 = "{sha}"\nsize = 6\nlicense = "BSD"\nflavors = ["cpu"]\n'
    )
    archive = layout.sources / "archives/torch-2.0-py3-none-any.whl"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"pinned")
    folder = fetch_wheelhouse(layout, "cpu")
    assert [path.name for path in folder.iterdir()] == [archive.name]
    # A folder of pip's with torch 2.0+cpu in it is never looked at for torch.
    assert [path.read_text() for path in asked] == [f"other==1.0 --hash=sha256:{'1' * 64}\n"]


def test_strangers_in_the_wheelhouse_are_dropped(tmp_path: Path) -> None:
    version, hashes = entries("dev")["iniconfig"]
    lines = " ".join(f"--hash=sha256:{value}" for value in sorted(hashes))
    layout = checkout(tmp_path, f"iniconfig=={version} {lines}\n")
    folder = layout.wheelhouse("cpu")
    folder.mkdir(parents=True)
    (folder / "evil-1.0-py3-none-any.whl").write_bytes(b"not locked")
    fetch_wheelhouse(layout, "cpu")
    assert [path.name for path in folder.iterdir()] == [f"iniconfig-{version}-py3-none-any.whl"]
