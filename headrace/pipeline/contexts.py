"""What goes into an image, laid out for the Dockerfile: one folder for each named context.

The folders hold exactly what the locks name, as hard links, so that a stray file in a download
folder can neither reach the image nor spoil the build cache.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name

from headrace.console import disk_error
from headrace.errors import ConfigurationError, ImageError
from headrace.pipeline.debian import PACKAGES_OF_FLAVORS, TOOL_PACKAGES, debs_folder
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.requirements import (
    format_requirements,
    link_or_copy,
    match_wheels,
    read_requirements,
)

# One image layer each, what changes least first.
WHEEL_LAYERS = ("torch", "engine", "headrace")
# Which locked distributions are in the first of them: torch and what it runs on.
TORCH_LAYER = {"cpu": r"torch", "sm103": r"torch|triton|(nvidia|cuda|cupy)-.+"}
# What comes from build/wheels and never from the lock.
OWN_WHEELS = {
    "cpu": frozenset({"headrace", "lmcache"}),
    "sm103": frozenset({"headrace", "lmcache", "flashinfer-python"}),
}
# What lies there and is not ours: no layer that changes with each commit holds half a gigabyte.
RELEASED = frozenset({"flashinfer-cubin"})
APT_CONF = """\
Dir::Etc::SourceList "/mnt/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "/tmp/lists";
Dir::Cache "/tmp/cache";
"""
FLAT_SOURCE = "deb [trusted=yes] file:/mnt ./\n"


def stage_contexts(layout: Layout, flavor: str) -> Path:
    """Lay out the contexts of `flavor` below build/context/FLAVOR; return that folder.

    Raises:
        ConfigurationError: the lock names what we build ourselves.
        ImageError: a locked wheel is not in the wheelhouse, or headrace's own are not built.
        MachineError: the disk is full.
    """
    folder = layout.build / "context" / flavor
    locked = match_wheels(
        read_requirements(layout.locks / f"{flavor}.txt"), layout.wheelhouse(flavor), flavor
    )
    if stock := sorted(OWN_WHEELS[flavor] & {_name(path) for path in locked}):
        raise ConfigurationError(
            f"{layout.locks / flavor}.txt: expected no {stock[0]}, whose wheel is built here, "
            "found the released one; run `python build.py lock python`"
        )
    own = {path: hash_file(path) for path in _own_wheels(layout, flavor)}
    first = re.compile(TORCH_LAYER[flavor])
    released = {path: sha for path, sha in own.items() if _name(path) in RELEASED}
    own = {path: sha for path, sha in own.items() if path not in released}
    torch = {path: sha for path, sha in locked.items() if first.fullmatch(_name(path))}
    engine = {path: sha for path, sha in locked.items() if path not in torch} | released
    partial = folder.with_name(f".{flavor}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for name, wheels in zip(WHEEL_LAYERS, (torch, engine, own), strict=True):
            _stage(partial / name, wheels)
            (partial / name / "requirements.txt").write_text(format_requirements(wheels))
        _stage(partial / "debs", debs_folder(layout).glob("*.deb"))
        _stage(partial / "debs", [debs_folder(layout) / "Packages"])
        (partial / "debs" / "apt.conf").write_text(APT_CONF)
        (partial / "debs" / "sources.list").write_text(FLAT_SOURCE)
        (partial / "debs" / "runtime.txt").write_text(_lines(PACKAGES_OF_FLAVORS[flavor]))
        (partial / "debs" / "tools.txt").write_text(_lines(TOOL_PACKAGES))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _own_wheels(layout: Layout, flavor: str) -> list[Path]:
    wheels = sorted(layout.wheels(flavor).glob("*.whl"))
    names = [_name(path) for path in wheels]
    wanted = OWN_WHEELS[flavor]
    if not wanted <= set(names) or len(names) != len(set(names)):
        raise ImageError(
            f"{layout.wheels(flavor)}: expected one wheel of {', of '.join(sorted(wanted))}, …, "
            f"found {', '.join(names) or 'none'}; run `python build.py wheels --flavor {flavor}`"
        )
    return wheels


def _name(wheel: Path) -> str:
    return canonicalize_name(wheel.name.split("-")[0])


def _lines(words: Iterable[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def _stage(folder: Path, files: Iterable[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        link_or_copy(path, folder / path.name)
