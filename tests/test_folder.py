"""A command's folder: gone again if nothing was written into it, and only what was made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import MachineError
from headrace.folder import output_folder


def test_what_was_made_and_stayed_empty_is_removed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with pytest.raises(ValueError, match="refused"), output_folder(tmp_path / "theirs/a/b"):
        raise ValueError("refused")
    assert [*tmp_path.rglob("*")] == [tmp_path / "theirs"]


def test_what_was_there_or_holds_a_file_stays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), output_folder(tmp_path):
        raise ValueError("refused")
    with pytest.raises(ValueError, match="refused"), output_folder(tmp_path / "a"):
        (tmp_path / "a" / "log").touch()
        raise ValueError("refused")
    assert (tmp_path / "a" / "log").exists()
    with output_folder(tmp_path / "b"):
        pass
    assert (tmp_path / "b").is_dir()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match=f"{tmp_path}/file"), output_folder(tmp_path / "file/a"):
        pass
