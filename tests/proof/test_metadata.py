"""Requirements of installed distributions are met, or excluded by name and reason."""

from __future__ import annotations

from tests.proof.conftest import Site

# The interpreter that runs the tests has distributions of its own; only ours are looked at.
OURS = ("toy", "other", "torchvision")


def problems(site: Site, excluded: dict[str, str] | None = None) -> list[str]:
    found = site.prove("metadata", {"excluded": excluded or {}})["problems"]
    return [line for line in found if line.startswith(OURS)]


def test_met_requirements_are_green(site: Site) -> None:
    site.install(
        "toy", {}, requires=["other>=1", "absent; extra == 'gpu'", "absent; sys_platform == 'x'"]
    )
    site.install("other", {})
    assert problems(site) == []


def test_a_missing_requirement_is_named(site: Site) -> None:
    site.install("toy", {}, requires=["absent>=2"])
    assert problems(site) == ["toy: asks for absent>=2, which is not installed"]


def test_another_version_is_named(site: Site) -> None:
    site.install("toy", {}, requires=["other>=2"])
    site.install("other", {})
    assert problems(site) == ["toy: asks for other>=2, found 1.0"]


def test_an_exclusion_waives_with_its_reason(site: Site) -> None:
    site.install("toy", {}, requires=["torchvision"])
    answer = site.prove("metadata", {"excluded": {"torchvision": "does not load"}})
    assert [line for line in answer["problems"] if line.startswith(OURS)] == []
    assert answer["facts"]["waived"]["toy -> torchvision"] == "does not load"


def test_an_excluded_distribution_that_came_in_is_named(site: Site) -> None:
    site.install("torchvision", {})
    assert problems(site, {"torchvision": "does not load"}) == [
        "torchvision: installed, but excluded: does not load"
    ]


def test_two_installations_of_one_distribution_are_named(site: Site) -> None:
    site.install("toy", {})
    info = site.folder / "toy-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 2.0\n")
    assert "toy: installed 2 times" in problems(site)


def test_a_requirement_that_is_none_is_named(site: Site) -> None:
    site.install("toy", {}, requires=["!!"])
    assert problems(site) == ["toy: asks for '!!', which is no requirement"]
