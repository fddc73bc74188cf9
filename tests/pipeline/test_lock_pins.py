"""A pin without a hash gets the one of what an index serves, and nothing else changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, SourceError
from headrace.pipeline import commands_line, sources
from headrace.pipeline.layout import Layout
from headrace.pipeline.lock_pins import lock_pins, with_hash
from headrace.pipeline.pins import Pin, load_pins

PINS = """\
# comment
[one]
version = "1.0"
kind = "pypi wheel"
file = "one-1.0-py3-none-any.whl"
sha256 = ""
license = "MIT"
flavors = ["sm103"]
only-for = "a stage"

[two]
version = "1.0"
kind = "flashinfer index"
file = "two-1.0-py3-none-any.whl"
sha256 = ""
size = 7
license = "MIT"
flavors = ["sm103"]

[three]
version = "1.0"
kind = "pypi wheel"
file = "three-1.0-py3-none-any.whl"
sha256 = "{sha}"
size = 5
license = "MIT"
flavors = ["cpu"]
"""
DATA = b"the wheel of two"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A checkout whose index has the file of [two] alone."""
    (tmp_path / "pins.toml").write_text(PINS.format(sha="ab" * 32))

    def download(layout: Layout, pin: Pin) -> tuple[str, int]:
        if pin.id != "two":
            raise SourceError(f"[{pin.id}]: not there")
        return hashlib.sha256(DATA).hexdigest(), len(DATA)

    monkeypatch.setattr(sources, "download_unlocked", download)
    return Layout(tmp_path)


def test_what_can_be_had_is_locked_and_the_rest_is_told(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    before = layout.pins.read_text()
    assert lock_pins(layout) == ["two"]
    pins = load_pins(layout.pins)
    assert [pin.id for pin in pins.unlocked("sm103")] == ["one"]
    assert (pins.get("two").sha256, pins.get("two").size) == (
        hashlib.sha256(DATA).hexdigest(),
        len(DATA),
    )
    assert "[one] stays without a sha256: [one]: not there" in capsys.readouterr().err
    changed = set(layout.pins.read_text().splitlines()) ^ set(before.splitlines())
    assert changed == {
        f'sha256 = "{hashlib.sha256(DATA).hexdigest()}"', f"size = {len(DATA)}", "size = 7",
    }  # fmt: skip


def test_a_second_run_changes_nothing(layout: Layout) -> None:
    lock_pins(layout)
    before = layout.pins.read_bytes()
    assert lock_pins(layout) == []
    assert layout.pins.read_bytes() == before


def test_lock_pins_alone_fails_while_one_stays_without_a_hash(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Layout, "find", lambda: layout)
    with pytest.raises(
        SourceError, match=r"pins\.toml: expected a sha256 for one, found none; run"
    ):
        commands_line.lock("pins")
    assert load_pins(layout.pins).get("two").locked
    text = layout.pins.read_text()
    layout.pins.write_text(text.replace('sha256 = ""', f'sha256 = "{"ef" * 32}"\nsize = 1'))
    commands_line.lock("pins")


@pytest.mark.parametrize("line", ['  sha256 = ""', 'sha256=""', 'sha256 = "" # not yet'])
def test_a_line_that_would_stay_as_it_is_does_not_pass_for_locked(
    layout: Layout, line: str
) -> None:
    text = layout.pins.read_text().replace('sha256 = ""', line)
    pin = load_pins(layout.pins).get("two")
    with pytest.raises(
        ConfigurationError, match=r"pins\.toml: \[two\]: expected the line .*run `py"
    ):
        with_hash(text, pin, "cd" * 32, 5)


def test_a_table_that_is_written_otherwise_is_named(layout: Layout) -> None:
    pin = load_pins(layout.pins).get("three")
    with pytest.raises(ConfigurationError, match=r"\[three\]: expected the line 'sha256 = \"\"'"):
        with_hash(layout.pins.read_text(), pin, "cd" * 32, 5)
