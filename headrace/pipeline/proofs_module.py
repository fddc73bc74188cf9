"""The check of FlashInfer's compiled module: the recorded one is loaded, and no other can be."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.utils import canonicalize_name

from headrace.engine.kernel_module import ADVICE, RECORD, parse_record
from headrace.errors import ConfigurationError, KernelModuleError
from headrace.pipeline.flashinfer import STOCK_MODULES
from headrace.pipeline.pins import load_pins
from headrace.pipeline.subject import RefutedError, Subject, site_relative

MODULE_LABEL = "org.headrace.kernel-module"


def kernel_module(subject: Subject) -> str:
    """FlashInfer loads the module that the build recorded, or compiles the patched sources.

    In mode "jit" a stock module in front would be loaded, so there must be none in any layer, and
    the start must refuse one.
    """
    record = built_record(subject)
    pin = load_pins(subject.layout.pins).get("flashinfer")
    wheel = next(w for w in subject.wheels if w.name == canonicalize_name(pin.name))
    said = subject.image.labels.get(MODULE_LABEL, "none")
    problems = []
    if said != record["mode"]:
        problems.append(f"label {MODULE_LABEL}: expected {record['mode']}, found {said}")
    problems += disagreements(record, wheel.files)
    problems += strays(subject.scan.paths, record)
    if problems:
        raise RefutedError(problems)
    facts = subject.ask(
        "module",
        {
            "record": record,
            "version": pin.version,
            "architectures": pin.compile_for,
            # As packages of stock modules name the same GPU.
            "provider": f"sm{pin.compile_for.replace('.', '')}",
        },
    )
    sources = f"{facts['sources']} patched sources, version {pin.version}"
    if record["mode"] == "aot":
        return (
            f"aot: {record['path']}, sha256 {record['sha256'][:12]}, exports {record['symbol']}, "
            f"also with a stock module in front; {sources}"
        )
    return f"jit: no compiled module anywhere, and a start refuses one; {sources}"


def built_record(subject: Subject) -> dict[str, Any]:
    """Return what the build says about the module in FlashInfer's wheel.

    Raises:
        ConfigurationError: the wheel is missing, or has no record that an engine would take.
    """
    pin = load_pins(subject.layout.pins).get("flashinfer")
    path = subject.layout.wheels(subject.flavor) / pin.file
    try:
        with zipfile.ZipFile(path) as wheel:
            record = parse_record(wheel.read(RECORD), Path(RECORD))
    except (OSError, zipfile.BadZipFile, KeyError, KernelModuleError) as broken:
        raise ConfigurationError(
            f"{path}: expected a wheel with {RECORD}, found {str(broken).removesuffix(ADVICE)}; "
            f"run 'python build.py wheels --flavor {subject.flavor}'"
        ) from broken
    return dataclasses.asdict(record)


def disagreements(record: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
    """Name each file whose sha256 in the record is not the one in the wheel's own RECORD."""
    recorded = dict(record["sources"])
    if record["path"]:
        recorded[record["path"]] = record["sha256"]
    return [
        f"{path}: expected sha256 {sha256}, as recorded for the module, found "
        f"{files.get(path, 'no such file')} in the wheel"
        for path, sha256 in sorted(recorded.items())
        if files.get(path) != sha256
    ]


def strays(paths: Iterable[str], record: Mapping[str, Any]) -> list[str]:
    """Name whatever of any layer FlashInfer could take for a compiled module, but the recorded."""
    package = STOCK_MODULES.replace("-", "_")
    problems = []
    for path in sorted(paths):
        pure = PurePosixPath(path)
        if any(part == package or part.startswith(f"{package}-") for part in pure.parts):
            problems.append(f"/{path}: of the package of stock modules")
        elif pure.name.startswith(record["module"]) and ".so" in pure.suffixes:
            if record["path"] is None or site_relative(path) != record["path"]:
                problems.append(f"/{path}: a compiled module that nobody recorded")
        elif "/.cache/flashinfer/" in f"/{path}":
            problems.append(f"/{path}: FlashInfer's cache of what it compiled")
    return problems
