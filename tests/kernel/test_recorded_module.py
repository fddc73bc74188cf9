"""FlashInfer loads the module that the build recorded, or none: no stock one and no stale one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from headrace.engine.kernel_module import RECORD
from tests.kernel import toolchain
from tests.kernel.loader_site import (
    AOT,
    MODULE,
    PATCHED_C,
    SOURCE,
    STOCK_C,
    SYMBOL,
    Loaded,
    LoaderSite,
    compiled,
)

STOCK_REASONS = {
    "test_a_file_that_does_not_load_is_no_reason_to_take_another": (
        r"expected a refusal, found .*/cached_ops/"
    ),
    "test_the_recorded_path_counts": r"expected it of patched sources, found .*/data/aot/",
    "test_a_file_that_is_gone_is_no_reason_to_take_another": (
        r"expected a refusal, found .*/flashinfer_jit_cache/"
    ),
    "test_a_file_of_another_build_is_refused": r"expected a refusal, found .*/data/aot/",
    "test_a_module_without_the_symbol_is_refused": r"expected a refusal, found .*/data/aot/",
    "test_a_second_build_in_the_process_is_refused": r"expected a refusal, found .*earlier",
    "test_stock_modules_are_not_taken_for_patched_sources": (
        r"expected it of patched sources, found .*/flashinfer_jit_cache/"
    ),
    "test_a_file_of_an_earlier_installation_is_not_taken": (
        r"expected it of patched sources, found .*/data/aot/"
    ),
    "test_objects_of_older_sources_are_not_taken": (
        r"expected it of patched sources, found .*/cached_ops/"
    ),
    "test_changed_sources_are_refused": r"expected a refusal, found .*/cached_ops/",
    "test_the_log_says_which_module_it_is": r"expected one line of the log, found 0",
    "test_a_broken_record_is_refused": r"expected a refusal, found .*/cached_ops/",
}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A module of patched sources and one of the release's."""
    folder = tmp_path_factory.mktemp("libraries")
    sources = {"patched": PATCHED_C, "stock": STOCK_C}
    return {name: compiled(text, folder / f"{name}.so") for name, text in sources.items()}


@pytest.fixture
def site(tmp_path: Path) -> LoaderSite:
    return LoaderSite(tmp_path, toolchain.patched_tree())


@pytest.fixture
def aot(site: LoaderSite, libraries: dict[str, Path]) -> LoaderSite:
    """An installation whose module was compiled by the build, and stock modules beside it."""
    site.write(AOT, libraries["patched"].read_bytes())
    site.record("aot")
    site.add_stock_modules(libraries["stock"])
    return site


def require_refusal(loaded: Loaded, pattern: str) -> None:
    found = ", ".join(loaded.mapped)
    assert loaded.error, f"expected a refusal, found {found} loaded"
    assert re.fullmatch(rf"RecordedModuleError: {pattern}", loaded.error), loaded.error
    assert "\n" not in loaded.error


def require_patched(loaded: Loaded) -> str:
    """Return the path of the one module that was loaded."""
    assert not loaded.error, loaded.error
    found = ", ".join(loaded.mapped)
    assert loaded.patched, f"expected it of patched sources, found {found}"
    assert loaded.mapped == loaded.paths
    return found


def test_a_file_that_does_not_load_is_no_reason_to_take_another(aot: LoaderSite) -> None:
    aot.write(AOT, b"\x7fELF, cut off")
    aot.record("aot")
    require_refusal(aot.load(), rf".*/{AOT}: expected a library that loads, found .*")
    assert not list(aot.home.rglob("*.ninja")), "expected no compile, found one"


def test_a_file_that_is_gone_is_no_reason_to_take_another(aot: LoaderSite) -> None:
    (aot.folder / AOT).unlink()
    require_refusal(aot.load(), rf".*/{AOT}: expected the recorded file, found No such file.*")
    assert not list(aot.home.rglob("*.ninja")), "expected no compile, found one"


def test_the_recorded_path_counts(aot: LoaderSite, libraries: dict[str, Path]) -> None:
    built = aot.write(f"flashinfer/data/built/{MODULE}.so", libraries["patched"].read_bytes())
    aot.record("aot", path=str(built.relative_to(aot.folder)))
    aot.write(AOT, libraries["stock"].read_bytes())
    assert require_patched(aot.load()) == str(built)


def test_a_file_of_another_build_is_refused(aot: LoaderSite, libraries: dict[str, Path]) -> None:
    aot.write(AOT, libraries["stock"].read_bytes())
    loaded = aot.load()
    require_refusal(loaded, rf".*/{AOT}: expected sha256 \w{{64}}, found \w{{64}}; install .*")
    assert loaded.mapped == []


def test_a_module_without_the_symbol_is_refused(
    aot: LoaderSite, libraries: dict[str, Path]
) -> None:
    aot.write(AOT, libraries["stock"].read_bytes())
    aot.record("aot")
    require_refusal(aot.load(), rf".*/{AOT}: expected the symbol {SYMBOL}, found none; .*")


def test_a_second_build_in_the_process_is_refused(
    aot: LoaderSite, libraries: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "earlier" / f"{MODULE}.so"
    other.parent.mkdir()
    other.write_bytes(libraries["stock"].read_bytes())
    found = rf".*/{AOT}: expected it alone to be loaded as {MODULE}, found .*{other}.*"
    require_refusal(aot.load(earlier=other), found)


def test_stock_modules_are_not_taken_for_patched_sources(
    site: LoaderSite, libraries: dict[str, Path]
) -> None:
    site.record("jit")
    site.add_stock_modules(libraries["stock"])
    assert f"/{MODULE}_5555555555555555/" in require_patched(site.load())


@pytest.mark.parametrize("place", [AOT, AOT.replace(MODULE, f"{MODULE}_5555555555555555")])
def test_a_file_of_an_earlier_installation_is_not_taken(
    place: str, site: LoaderSite, libraries: dict[str, Path]
) -> None:
    site.record("jit")
    for path in (AOT, place):
        site.write(path, libraries["stock"].read_bytes())
    assert "/cached_ops/" in require_patched(site.load())


def test_objects_of_older_sources_are_not_taken(site: LoaderSite) -> None:
    source = site.write(SOURCE, STOCK_C)
    assert not site.load().patched
    # What a package brings is older than what was compiled since.
    os.utime(site.write(SOURCE, PATCHED_C), (0, 0))
    assert source.stat().st_mtime == 0
    site.record("jit")
    require_patched(site.load())
    site.write(SOURCE, PATCHED_C + "\n")
    site.record("jit", series_sha256="6" * 64)
    assert f"/{MODULE}_6666666666666666/" in require_patched(site.load())


def test_changed_sources_are_refused(site: LoaderSite) -> None:
    site.record("jit")
    site.write(SOURCE, STOCK_C)
    require_refusal(site.load(), rf".*/{SOURCE}: expected sha256 \w{{64}}, found \w{{64}}; .*")


@pytest.mark.parametrize("mode", ["aot", "jit"])
def test_the_log_says_which_module_it_is(
    mode: str, site: LoaderSite, libraries: dict[str, Path]
) -> None:
    site.write(AOT, libraries["patched"].read_bytes())
    site.record(mode)
    loaded = site.load()
    lines = [line for line in loaded.log.splitlines() if f": loaded {MODULE}, mode " in line]
    assert len(lines) == 1, f"expected one line of the log, found {len(lines)}"
    (path,) = loaded.mapped
    says = rf"loaded {MODULE}, mode {mode}: {path}, sha256 \w{{64}}, exports {SYMBOL}"
    assert re.search(rf": {says}$", lines[0]), lines[0]


@pytest.mark.parametrize("text", ["{", "[]", '{"module": "m"}', '{"mode": 1, "more": 2}'])
def test_a_broken_record_is_refused(text: str, site: LoaderSite) -> None:
    site.write(RECORD, text)
    require_refusal(site.load(), rf".*/{RECORD}: expected a record of a module, found .*")


def test_a_mode_that_the_path_does_not_fit_is_refused(site: LoaderSite) -> None:
    site.record("jit", path=AOT)
    require_refusal(site.load(), rf".*/{RECORD}: expected mode aot with a path.*, found jit; .*")


def test_without_a_record_the_release_chooses(site: LoaderSite, libraries: dict[str, Path]) -> None:
    provided = site.add_stock_modules(libraries["stock"])
    assert site.load().mapped == [str(provided)]
    placed = site.write(AOT, libraries["stock"].read_bytes())
    loaded = site.load()
    assert loaded.mapped == loaded.paths == [str(placed)]
    assert "sha256" not in loaded.log


def test_other_modules_are_the_releases(aot: LoaderSite, libraries: dict[str, Path]) -> None:
    provided = aot.add_stock_modules(libraries["stock"], "gdn_prefill")
    assert aot.load("gdn_prefill").mapped == [str(provided)]
