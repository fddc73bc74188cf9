"""Which build of the MoE module FlashInfer must load: headrace-module.json in its wheel.

FlashInfer finds a compiled module by its name and never compares it with sources, so a stock one
runs the old kernel and nothing tells. The build records what it made; whoever starts or inspects an
engine compares. Read before every engine starts, so of the standard library alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

from headrace.errors import KernelModuleError

RECORD = "flashinfer/data/headrace-module.json"
# To whoever starts an image; it ends each message.
ADVICE = "; take an image that build.py verify passed"

_KEYS = ("module", "mode", "path", "sha256", "symbol", "series_sha256", "sources")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class ModuleRecord:
    """What the build says about the module of one FlashInfer wheel.

    Attributes:
        module: FlashInfer's name of it.
        mode: "aot": compiled by the build; "jit": by the first start, from patched sources.
        path: of the compiled file, below site-packages; None in mode "jit".
        sha256: of that file; None in mode "jit".
        symbol: what the module exports and the release's does not.
        series_sha256: of the patch series.
        sources: path below site-packages → sha256, for each file that the series touches.
    """

    module: str
    mode: Literal["aot", "jit"]
    path: str | None
    sha256: str | None
    symbol: str
    series_sha256: str
    sources: Mapping[str, str]


def read_record(site: Path) -> ModuleRecord:
    """Return the record of the FlashInfer that is installed in `site`, a site-packages folder.

    Raises:
        KernelModuleError: there is none, or it does not say what it must.
    """
    file = site / RECORD
    try:
        data = file.read_bytes()
    except OSError as failure:
        raise _broken(file, "a record of the module", failure.strerror or "none") from failure
    return parse_record(data, file)


def parse_record(data: bytes, file: Path) -> ModuleRecord:
    """Return what `data` says, the content of `file`.

    Raises:
        KernelModuleError: it does not say what it must.
    """
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as failure:
        raise _broken(file, "JSON", str(failure)) from failure
    if not isinstance(said, dict) or sorted(said) != sorted(_KEYS):
        keys = ", ".join(sorted(said)) if isinstance(said, dict) else type(said).__name__
        raise _broken(file, f"the keys {', '.join(_KEYS)}", keys or "none")
    if said["mode"] not in ("aot", "jit"):
        raise _broken(file, "mode aot or jit", repr(said["mode"]))
    for key, pattern in (("module", _WORD), ("symbol", _WORD), ("series_sha256", _SHA256)):
        if not _is(pattern, said[key]):
            raise _broken(file, _wanted(key, pattern), repr(said[key]))
    if said["mode"] == "aot":
        if not _below(said["path"]):
            raise _broken(file, "a path below site-packages in mode aot", repr(said["path"]))
        if not _is(_SHA256, said["sha256"]):
            raise _broken(file, _wanted("sha256", _SHA256), repr(said["sha256"]))
    elif said["path"] is not None or said["sha256"] is not None:
        raise _broken(file, "no path and no sha256 in mode jit", f"{said['path'] or 'a sha256'}")
    sources = said["sources"]
    if not isinstance(sources, dict) or not sources:
        raise _broken(file, "the sources of the series", repr(sources))
    for path, sha256 in sources.items():
        if not _below(path) or not _is(_SHA256, sha256):
            raise _broken(file, "sources as paths below site-packages and sha256", repr(path))
    return ModuleRecord(**cast("dict[str, Any]", said))


def _broken(file: Path, expected: str, found: str) -> KernelModuleError:
    return KernelModuleError(f"{file}: expected {expected}, found {found}{ADVICE}")


def _wanted(key: str, pattern: re.Pattern[str]) -> str:
    return f"{key} to be {'64 hexadecimal digits' if pattern is _SHA256 else 'a name'}"


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _below(path: object) -> bool:
    """Whether `path` leads to a file below the folder it is joined to."""
    # No file has a name with NUL or half a character in it, and asking for one raises.
    if not isinstance(path, str) or not path or not path.isprintable():
        return False
    pure = PurePosixPath(path)
    return not pure.is_absolute() and ".." not in pure.parts and str(pure) == path
