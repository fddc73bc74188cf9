"""What GPU code a library holds, by cuobjdump, and whether it is what pins.toml promises."""

from __future__ import annotations

import re
import tempfile
import zipfile
from pathlib import Path

from headrace.console import call, disk_error
from headrace.errors import MachineError, WheelError
from headrace.pipeline.cuda import Toolkit
from headrace.pipeline.pins import Pin

# "ELF file    1: name.1.sm_103a.cubin", "PTX file    1: name.1.sm_103a.ptx"
_ENTRY = re.compile(r"^(ELF|PTX) file +\d+: .*\.sm_(\d+[af]?)\.(?:cubin|ptx)$", re.MULTILINE)
NONE = "does not contain device code"


def found_code(toolkit: Toolkit, library: Path) -> frozenset[str]:
    """Return the GPU code in `library`, e.g. {"sm_103a", "compute_100f"}; empty if it has none."""
    listed = call(
        ["sh", "-c", '"$1" --list-elf --list-ptx "$2" 2>&1 || true', "sh",
         toolkit.cuobjdump, library],
        error=MachineError,
    )  # fmt: skip
    return parse_listing(listed, library)


def parse_listing(listed: str, library: Path) -> frozenset[str]:
    """Return the code that cuobjdump listed.

    Raises:
        MachineError: it listed nothing, and did not say that there is nothing either.
    """
    kinds = {"ELF": "sm", "PTX": "compute"}
    code = frozenset(f"{kinds[kind]}_{name}" for kind, name in _ENTRY.findall(listed))
    if not code and NONE not in listed:
        said = (listed.strip().splitlines() or ["nothing"])[-1]
        raise MachineError(f"{library}: expected cuobjdump's list of device code, found {said!r}")
    return code


def require_device_code(toolkit: Toolkit, pin: Pin, wheel: Path) -> dict[str, frozenset[str]]:
    """Return library → GPU code of a wheel's libraries that hold any.

    Raises:
        WheelError: none does, or one holds nothing of what `device-code` of its pin names.
        MachineError: the temporary folder has no room for them.
    """
    found: dict[str, frozenset[str]] = {}
    try:
        with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as zipped:
            for name in sorted(zipped.namelist()):
                if name.endswith(".so") and (
                    code := _code_of(toolkit, zipped, name, Path(scratch))
                ):
                    found[name] = code
    except OSError as failure:
        raise disk_error(failure, Path(tempfile.gettempdir())) from failure
    wanted = " or ".join(pin.device_code)
    if not found:
        raise WheelError(f"{wheel}: expected device code for {wanted}, found none in any library")
    for name, code in found.items():
        if not code & set(pin.device_code):
            raise WheelError(
                f"{wheel}: expected device code for {wanted} in {name}, found "
                f"{', '.join(sorted(code))}"
            )
    return found


def _code_of(toolkit: Toolkit, zipped: zipfile.ZipFile, name: str, scratch: Path) -> frozenset[str]:
    library = scratch / Path(name).name
    library.write_bytes(zipped.read(name))
    try:
        return found_code(toolkit, library)
    finally:
        library.unlink()
