"""The committed Python locks: complete, hashed, hostless, and of one mind with the pins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from headrace.errors import ConfigurationError, SourceError
from headrace.pipeline.layout import Layout
from headrace.pipeline.lockfiles import fetch_wheelhouse, lmcache_requirements
from headrace.pipeline.pins import load_pins

LAYOUT = Layout.find()
LOCKS = ["cpu", "dev"]


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


def test_the_image_lock_holds_the_pins_and_not_what_is_excluded() -> None:
    lock = entries("cpu")
    for pin in load_pins(LAYOUT.pins).of_flavor("cpu"):
        if pin.kind in ("pypi wheel", "pytorch cpu"):
            version, hashes = lock[pin.name]
            assert version == pin.version
            assert pin.sha256 in hashes
    assert not {"torchvision", "torchaudio", "torchcodec", "triton", "lmcache"} & set(lock)
    assert not [project for project in lock if project.startswith("nvidia-")]


def test_a_checkout_tests_with_the_versions_that_the_image_holds() -> None:
    image, checkout = entries("cpu"), entries("dev")
    shared = set(image) & set(checkout)
    assert {"torch", "numpy", "transformers", "valkey"} <= shared
    assert {p: image[p][0] for p in shared} == {p: checkout[p][0] for p in shared}


def test_the_image_lock_satisfies_lmcache() -> None:
    lock = entries("cpu")
    for text in lmcache_requirements(LAYOUT):
        requirement = Requirement(text)
        version = lock[requirement.name.lower().replace("_", "-")][0]
        assert requirement.specifier.contains(version, prereleases=True), text


def checkout(tmp_path: Path, lock: str) -> Layout:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "cpu.txt").write_text(lock)
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


def test_strangers_in_the_wheelhouse_are_dropped(tmp_path: Path) -> None:
    version, hashes = entries("dev")["iniconfig"]
    lines = " ".join(f"--hash=sha256:{value}" for value in sorted(hashes))
    layout = checkout(tmp_path, f"iniconfig=={version} {lines}\n")
    folder = layout.wheelhouse("cpu")
    folder.mkdir(parents=True)
    (folder / "evil-1.0-py3-none-any.whl").write_bytes(b"not locked")
    fetch_wheelhouse(layout, "cpu")
    assert [path.name for path in folder.iterdir()] == [f"iniconfig-{version}-py3-none-any.whl"]
