"""A patched file is proved by where Python finds it, by its bytes, and by the code it runs."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import py_compile
from pathlib import Path
from typing import Any

import pytest

from tests.proof.conftest import Site

SOURCE = "answer = 42\n"
STALE = "answer = 41\n"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def request(**files: str | None) -> dict[str, Any]:
    named = {f"toy/{name}.py": value for name, value in files.items()}
    return {"projects": [{"distribution": "toy", "files": named}]}


@pytest.fixture
def toy(site: Site) -> Site:
    site.install("toy", {"toy/__init__.py": "", "toy/part.py": SOURCE, "toy/data.txt": "data"})
    return site


def test_the_installed_file_is_green_and_its_place_is_reported(toy: Site) -> None:
    answer = toy.prove("files", request(part=sha256(SOURCE)))
    assert answer["problems"] == []
    assert answer["facts"]["resolved"] == {"toy/part.py": str(toy.folder / "toy/part.py")}


def test_a_modified_file_is_named_with_both_hashes(toy: Site) -> None:
    (toy.folder / "toy/part.py").write_text(STALE)
    problems = toy.prove("files", request(part=sha256(SOURCE)))["problems"]
    assert problems == [
        f"{toy.folder}/toy/part.py: expected sha256 {sha256(SOURCE)}, found {sha256(STALE)}"
    ]


def test_a_missing_file_is_named(toy: Site) -> None:
    (toy.folder / "toy/part.py").unlink()
    problems = toy.prove("files", request(part=sha256(SOURCE)))["problems"]
    assert problems == ["toy/part.py: Python finds no module toy.part"]


@pytest.mark.parametrize("text", [SOURCE, STALE])
def test_a_copy_earlier_on_the_path_is_noticed_even_with_equal_bytes(
    toy: Site, tmp_path: Path, text: str
) -> None:
    other = tmp_path / "earlier" / "toy"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "part.py").write_text(text)
    problems = toy.prove("files", request(part=sha256(SOURCE)), earlier=[other.parent])["problems"]
    assert f"{other}/part.py: a second copy of toy/part.py" in problems
    assert any("Python resolves" in problem for problem in problems)


def test_a_copy_later_on_the_path_is_noticed_too(site: Site, tmp_path: Path) -> None:
    site.install("toy", {"toy/__init__.py": "", "toy/part.py": SOURCE})
    first = Site(tmp_path / "first")
    first.install("toy", {"toy/__init__.py": "", "toy/part.py": SOURCE})
    problems = site.prove("files", request(part=sha256(SOURCE)), earlier=[first.folder])["problems"]
    assert problems == [f"{site.folder}/toy/part.py: a second copy of toy/part.py"]


def test_a_file_that_a_patch_deletes_must_be_gone(toy: Site) -> None:
    assert toy.prove("files", request(part=None))["problems"] == [
        "toy/part.py: deleted by a patch of toy, still there"
    ]
    assert toy.prove("files", request(gone=None))["problems"] == []


def test_stale_byte_code_is_noticed(toy: Site, tmp_path: Path) -> None:
    source = toy.folder / "toy/part.py"
    planted = tmp_path / "part.py"
    planted.write_text(STALE)
    # Byte code is trusted when time and size of the source match: plant one for which they do.
    stamp = source.stat().st_mtime
    os.utime(planted, (stamp, stamp))
    py_compile.compile(
        str(planted),
        importlib.util.cache_from_source(str(source)),
        dfile=str(source),
        invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP,
    )
    problems = toy.prove("files", request(part=sha256(SOURCE)))["problems"]
    assert len(problems) == 1 and "stale byte code" in problems[0]


def test_byte_code_of_the_same_source_is_green(toy: Site) -> None:
    py_compile.compile(
        str(toy.folder / "toy/part.py"),
        invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
    )
    assert toy.prove("files", request(part=sha256(SOURCE)))["problems"] == []


def test_a_data_file_is_compared_where_the_distribution_lies(toy: Site) -> None:
    wanted = {"projects": [{"distribution": "toy", "files": {"toy/data.txt": sha256("data")}}]}
    assert toy.prove("files", wanted)["problems"] == []
    (toy.folder / "toy/data.txt").write_text("other")
    assert len(toy.prove("files", wanted)["problems"]) == 1


def test_a_distribution_that_is_not_installed_is_named(site: Site) -> None:
    assert site.prove("files", request(part="0"))["problems"] == [
        "toy: expected an installed distribution, found none"
    ]


def test_a_package_that_does_not_import_is_a_problem_and_no_crash(site: Site) -> None:
    site.install("toy", {"toy/__init__.py": "1 / 0\n", "toy/part.py": SOURCE})
    assert site.prove("files", request(part=sha256(SOURCE)))["problems"] == [
        "toy/part.py: a package above it does not import: division by zero"
    ]


def test_a_missing_dependency_of_a_parent_does_not_look_like_a_missing_module(site: Site) -> None:
    site.install("toy", {"toy/__init__.py": "import no_such_thing\n", "toy/part.py": SOURCE})
    problems = site.prove("files", request(part=None))["problems"]
    assert problems == [
        "toy/part.py: a package above it does not import: No module named 'no_such_thing'"
    ]
