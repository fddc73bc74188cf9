"""The stand-in headers as the Python package that FlashInfer's generator of modules asks for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.kernel.gate_headers import EXPORT

PACKAGE = """import pathlib

__version__ = "{version}"


def get_cubin_dir():
    return str(pathlib.Path(__file__).parent / "cubins")
"""


def write_package(headers: Path, folder: Path, place: str, version: str) -> str:
    """Write what gate_headers.py wrote as a package flashinfer_cubin below `folder`.

    Files that have their content already are left alone, for the sake of what was compiled with
    them.

    Args:
        place: where FlashInfer looks for the GEMM kernels in that package.
        version: FlashInfer's own, which it asks of the package.

    Returns:
        The sha256 of the list of checksums, which FlashInfer has to expect.
    """
    package = folder / "flashinfer_cubin"
    exported = headers / EXPORT
    texts = {
        f"include/{path.relative_to(exported).as_posix()}": path.read_text()
        for path in exported.rglob("*.h")
    }
    texts["include/flashinferMetaInfo.h"] = (headers / "flashinferMetaInfo.h").read_text()
    sums = "".join(f"{_sha256(text)}  {path}\n" for path, text in sorted(texts.items()))
    _write(package / "__init__.py", PACKAGE.format(version=version))
    for path, text in (texts | {"checksums.txt": sums}).items():
        _write(package / "cubins" / place / path, text)
    return _sha256(sums)


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
