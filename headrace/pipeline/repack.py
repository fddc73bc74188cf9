"""Pack an unpacked wheel again under its own name and version, with a new RECORD.

Versions stay as they are: FlashInfer refuses companions of another one, and NIXL's handshake
compares vLLM's. The bytes depend on the files alone.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from headrace.console import disk_error
from headrace.errors import WheelError

# The earliest time that a zip archive can hold.
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def repack(tree: Path, wheel: Path, added: Mapping[str, bytes] | None = None) -> None:
    """Write the files of `tree`, and `added` ones by their path in it, as `wheel`.

    Raises:
        WheelError: the tree is no unpacked wheel, or has a file of an added one's name.
        MachineError: the disk is full.
    """
    infos = sorted(path.name for path in tree.glob("*.dist-info"))
    if len(infos) != 1:
        found = ", ".join(infos) or "none"
        raise WheelError(f"{tree}: expected one *.dist-info of an unpacked wheel, found {found}")
    record = f"{infos[0]}/RECORD"
    files: dict[str, Path | bytes] = {
        path.relative_to(tree).as_posix(): path for path in tree.rglob("*") if path.is_file()
    }
    for name, data in (added or {}).items():
        if name in files:
            raise WheelError(f"{tree}: expected no {name} yet, found one")
        files[name] = data
    files.pop(record, None)
    partial = wheel.with_name(f".{wheel.name}.{os.getpid()}.partial")
    try:
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as zipped:
            lines = [_write(zipped, name, files[name]) for name in sorted(files)]
            _write(zipped, record, "".join([*lines, f"{record},,\n"]).encode())
        partial.replace(wheel)
    except OSError as failure:
        raise disk_error(failure, wheel) from failure
    finally:
        # A read-only folder refuses even to look for it.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _write(zipped: zipfile.ZipFile, name: str, source: Path | bytes) -> str:
    """Add one file to the archive and return its line of RECORD."""
    data = source if isinstance(source, bytes) else source.read_bytes()
    runs = isinstance(source, Path) and source.stat().st_mode & 0o111
    entry = zipfile.ZipInfo(name, ZIP_EPOCH)
    entry.external_attr = (0o100755 if runs else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    zipped.writestr(entry, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    quoted = f'"{name}"' if "," in name else name
    return f"{quoted},sha256={digest},{len(data)}\n"
