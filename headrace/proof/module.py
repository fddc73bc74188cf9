"""FlashInfer loads the recorded module, or none at all, and nothing that is put in front of it.

The release finds a compiled module by its name and never compares it with the sources, so its
loader, as the series has it, is asked: as the image is, and with a stand-in for the package of
stock modules in front. In mode "jit" a start must refuse that as well.

Request: `{"record": {…}, "version": "0.7.0.post1", "architectures": "10.3a",
"provider": "sm103a"}`;
`record` is what the build wrote into the wheel.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.engine.kernel_check import STOCK_MODULES
from headrace.engine.kernel_module import ModuleRecord, read_record
from headrace.errors import KernelModuleError
from headrace.proof.answer import Answer, Request, sha256_of
from headrace.proof.elf import read_library

DISTRIBUTION = "flashinfer-python"
# As FlashInfer's own shim offers modules, with one provider.
STAND_IN = """
import pathlib, types
__version__ = {version!r}
def get_jit_cache_providers():
    return [types.SimpleNamespace(
        provider_id="stand-in", distribution="flashinfer-jit-cache", version=__version__,
        jit_cache_dir=pathlib.Path(__file__).parent / "jit_cache",
        cuda_architectures=[{provider!r}], modules=[{module!r}],
    )]
"""
# What `headrace serve` does before it becomes an engine.
START = (
    "import pathlib, sys; from headrace.engine.kernel_check import require_recorded_module; "
    "from headrace.errors import KernelModuleError\n"
    "try: require_recorded_module(pathlib.Path(sys.argv[1]))\n"
    "except KernelModuleError as refused: print(refused, file=sys.stderr); "
    "raise SystemExit(refused.exit_code)\n"
)
LOADER_S = 240.0


def prove(request: Request) -> Answer:
    """Compare the record, the sources and the module with the build's; ask the loader twice."""
    answer = Answer()
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
        site = Path(str(distribution.locate_file(""))).resolve()
        record = read_record(site)
    except importlib.metadata.PackageNotFoundError:
        answer.problems.append(f"{DISTRIBUTION}: expected an installed distribution, found none")
        return answer
    except KernelModuleError as unusable:
        answer.problems.append(str(unusable))
        return answer
    answer.problems += differences(record, request["record"])
    answer.problems += sources(site, record)
    cache = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE", Path.home())) / ".cache/flashinfer"
    if cache.exists():
        answer.problems.append(f"{cache}: modules that an earlier start compiled")
    said = ask(record.module, request)
    for where, found in (("metadata", distribution.version), ("__version__", said["version"])):
        if found != request["version"]:
            answer.problems.append(
                f"flashinfer {where}: expected {request['version']}, found {found}"
            )
    if said["stock"]:
        answer.problems.append(f"{said['stock']}: a package of stock modules")
    wanted = [str(site / record.path)] if record.path else []
    answer.problems += loads(said, wanted, "")
    if record.path:
        answer.problems += module(site / record.path, record)
    answer.problems += refused(starts(site, request, ""), record, front=False)
    with tempfile.TemporaryDirectory(prefix="stand-in-") as folder:
        stand_in(Path(folder), record.module, said["version"], request["provider"])
        said = ask(record.module, request, front=folder)
        # Otherwise FlashInfer does not look there, and nothing would be proved.
        if not str(said["stock"]).startswith(folder) or not said["providers"]:
            raise RuntimeError(f"flashinfer does not see the stand-in in {folder}: {said}")
        answer.problems += loads(said, wanted, " with a stock module in front")
        if not record.path:
            answer.problems += refused(starts(site, request, folder), record, front=True)
    answer.facts.update(mode=record.mode, path=record.path, sources=len(record.sources))
    return answer


def differences(record: ModuleRecord, expected: Mapping[str, Any]) -> list[str]:
    """Name each field in which the image's record is not the one that the build wrote."""
    found = dataclasses.asdict(record)
    return [
        f"record of the module: {key}: expected {expected.get(key)}, found {value}"
        for key, value in found.items()
        if value != expected.get(key)
    ]


def sources(site: Path, record: ModuleRecord) -> list[str]:
    """Name each source below data/csrc and data/include, and elsewhere, that is not the patched."""
    problems = []
    for relative, expected in record.sources.items():
        path = site / relative
        found = sha256_of(path) if path.is_file() else "no file"
        if found != expected:
            problems.append(f"{path}: expected sha256 {expected}, found {found}")
    return problems


def module(path: Path, record: ModuleRecord) -> list[str]:
    """Compare the compiled module's bytes, and look for the symbol that the release lacks."""
    if not path.is_file():
        return [f"{path}: expected the compiled module, found no file"]
    problems = []
    if (found := sha256_of(path)) != record.sha256:
        problems.append(f"{path}: expected sha256 {record.sha256}, found {found}")
    try:
        exported = record.symbol in read_library(path).defined
    except ValueError as broken:
        return [*problems, str(broken)]
    if not exported:
        problems.append(f"{path}: expected it to export {record.symbol}, found no such symbol")
    return problems


def loads(said: Mapping[str, Any], wanted: list[str], when: str) -> list[str]:
    found = [str(Path(path).resolve()) for path in said["loads"]]
    if found == wanted:
        return []
    return [
        f"flashinfer{when}: expected to load {wanted[0] if wanted else 'no compiled module'}, "
        f"found {', '.join(found) or 'none'}"
    ]


def stand_in(folder: Path, module: str, version: str, provider: str) -> None:
    """Write a package of stock modules that offers `module` for the GPU of the flavor.

    It bears the version that FlashInfer has, right or wrong: another would not be imported at all.
    """
    package = folder / STOCK_MODULES
    library = package / "jit_cache" / module / f"{module}.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"a stock module")
    text = STAND_IN.format(version=version, provider=provider, module=module)
    (package / "__init__.py").write_text(text)


def environment(request: Request, front: str) -> dict[str, str]:
    path = os.pathsep.join(part for part in (front, os.environ.get("PYTHONPATH", "")) if part)
    return {
        **os.environ,
        "FLASHINFER_CUDA_ARCH_LIST": request["architectures"],
        **({"PYTHONPATH": path} if path else {}),
    }


def ask(module: str, request: Request, *, front: str = "") -> dict[str, Any]:
    """Ask FlashInfer's loader in a process that finds `front` before everything installed.

    Raises:
        RuntimeError: FlashInfer cannot be imported, which proves nothing.
    """
    with tempfile.TemporaryDirectory(prefix="cache-") as base:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.proof.loader", module],
            capture_output=True,
            text=True,
            timeout=LOADER_S,
            # It writes a log there as soon as it is imported.
            env={**environment(request, front), "FLASHINFER_WORKSPACE_BASE": base},
            check=False,
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise RuntimeError(f"flashinfer's loader cannot be asked: {last}")
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def starts(site: Path, request: Request, front: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, str(site)],
        capture_output=True,
        text=True,
        timeout=LOADER_S,
        env=environment(request, front),
        check=False,
    )


def refused(
    done: subprocess.CompletedProcess[str], record: ModuleRecord, *, front: bool
) -> list[str]:
    """Name a start-up that does not refuse a stock module, or refuses the image as it is."""
    expected = KernelModuleError.exit_code if front else 0
    if done.returncode == expected:
        return []
    if done.returncode not in (0, KernelModuleError.exit_code):
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise RuntimeError(f"start-up ended with status {done.returncode}: {last}")
    if front:
        return [f"start-up: expected to refuse a stock {record.module} in front, found it let pass"]
    return [f"start-up refuses the image as it is: {done.stderr.strip()}"]
