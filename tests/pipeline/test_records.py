"""What an image should hold is read from the wheels, the patch records and the exclusions."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError
from headrace.pipeline.layout import Layout
from headrace.pipeline.records import exclusions, patch_records, read_wheel, wheel_records
from tests.pipeline.toy import PINS

DATA = b"data"
HEX = hashlib.sha256(DATA).hexdigest()
ROW = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(DATA).digest()).rstrip(b"=").decode()


def write_wheel(path: Path, files: Mapping[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "pins.toml").write_text(PINS)
    return Layout(tmp_path)


def test_only_what_is_installed_unchanged_is_recorded(tmp_path: Path) -> None:
    record = (
        f"toy/a.py,{ROW},4\ntoy/b.so,{ROW},4\ntoy/__pycache__/a.pyc,{ROW},4\n"
        f"toy-1.data/scripts/run,{ROW},4\ntoy-1.dist-info/RECORD,,\n"
    )
    files = {
        "toy/_vendor/x-2.dist-info/RECORD": f"x.py,{ROW},4\n",
        "toy-1.dist-info/RECORD": record,
    }
    found = read_wheel(write_wheel(tmp_path / "toy-1-py3-none-any.whl", files))
    assert (found.name, found.version) == ("toy", "1")
    assert found.files == {"toy/a.py": HEX, "toy/b.so": HEX}
    assert found.extensions == {"toy/b.so": HEX}


def test_a_wheel_without_a_record_is_named(tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "toy-1-py3-none-any.whl", {"toy/a.py": ""})
    with pytest.raises(ConfigurationError, match=f"{path}: expected a wheel with a RECORD"):
        read_wheel(path)


@pytest.mark.parametrize(
    ("name", "record"), [("toy.whl", b""), ("toy-1-py3-none-any.whl", b"\xff,,\n")]
)
def test_a_wheel_of_no_name_or_text_is_named(tmp_path: Path, name: str, record: bytes) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("toy-1.dist-info/RECORD", record)
    with pytest.raises(ConfigurationError, match=rf"{name}: expected a wheel with a RECORD"):
        read_wheel(tmp_path / name)


def test_an_empty_line_of_a_record_is_none(tmp_path: Path) -> None:
    files = {"toy-1.dist-info/RECORD": f"\ntoy/a.py,{ROW},4\n"}
    found = read_wheel(write_wheel(tmp_path / "toy-1-py3-none-any.whl", files))
    assert found.files == {"toy/a.py": HEX}


def test_a_rebuilt_wheel_stands_for_the_locked_one(layout: Layout) -> None:
    for folder, version in (
        (layout.wheels("cpu"), "1.0+headrace.1"),
        (layout.wheelhouse("cpu"), "1.0"),
    ):
        path = folder / f"toy-{version}-py3-none-any.whl"
        write_wheel(path, {f"toy-{version}.dist-info/RECORD": f"toy/a.py,{ROW},4\n"})
    path = layout.wheels("cpu") / "headrace-0.1-py3-none-any.whl"
    # What is locked is fetched, and only what is ours is built.
    advice = "run 'python build.py fetch --flavor cpu', then 'python build.py wheels --flavor cpu'"
    with pytest.raises(ConfigurationError, match=f"expected a wheel of headrace, .*{advice}$"):
        wheel_records(layout, "cpu")
    write_wheel(path, {"headrace-0.1.dist-info/RECORD": ""})
    names = [(record.name, record.version) for record in wheel_records(layout, "cpu")]
    assert names == [("headrace", "0.1"), ("toy", "1.0+headrace.1")]


def test_a_patched_tree_without_its_record_is_named(layout: Layout) -> None:
    with pytest.raises(ConfigurationError, match=r"toy-1\.0\.json: expected the record"):
        patch_records(layout, "cpu")
    layout.patched.mkdir(parents=True)
    wrong = {"series_sha256": "s", "files": ["toy/a.py"]}
    for broken in ("[]", '"x"', "{}", "{", "[" * 100_000, json.dumps(wrong)):
        (layout.patched / "toy-1.0.json").write_text(broken)
        with pytest.raises(ConfigurationError) as refused:
            patch_records(layout, "cpu")
        (line,) = str(refused.value).splitlines()
        assert "toy-1.0.json: expected the record of a patched tree, found " in line
        assert line.endswith("; run 'python build.py patch'")
    value = {"series_sha256": "s", "files": {"toy/a.py": HEX, "toy/b.py": None}}
    (layout.patched / "toy-1.0.json").write_text(json.dumps(value))
    assert patch_records(layout, "cpu")[0].files == {"toy/a.py": HEX, "toy/b.py": None}


def test_exclusions_that_cannot_be_read_are_one_line(layout: Layout) -> None:
    layout.locks.mkdir()
    (layout.locks / "exclude.txt").write_text("# why\ntorch ; nonsense\n")
    with pytest.raises(ConfigurationError, match=r"exclude\.txt:2: expected a requirement, found"):
        exclusions(layout, "sm103")
    (layout.locks / "exclude.txt").write_text("")
    with pytest.raises(ConfigurationError, match=r"exclude-sm103\.txt: expected .*, found no file"):
        exclusions(layout, "sm103")


def test_exclusions_carry_the_comment_above_them(layout: Layout) -> None:
    layout.locks.mkdir()
    (layout.locks / "exclude.txt").write_text(
        "# What this file is.\n\n# does not\n# load\nTorch_Vision ; python_version < '0'\n"
        "torchaudio ; python_version < '0'\n"
    )
    (layout.locks / "exclude-cpu.txt").write_text("# too large\ntriton ; python_version < '0'\n")
    (layout.locks / "exclude-sm103.txt").write_text("")
    common = {"torch-vision": "does not load", "torchaudio": "does not load"}
    assert exclusions(layout, "cpu") == {**common, "triton": "too large"}
    assert exclusions(layout, "sm103") == common
