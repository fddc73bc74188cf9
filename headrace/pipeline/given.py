"""Takes the results of a suite that ran against a live engine of the image that is proved.

They are a record, not a signature: who gives them says that they come from this image.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.console import disk_error, plain
from headrace.errors import ConfigurationError
from headrace.pipeline.evidence import Case, Verdict
from headrace.pipeline.given_needle import FILES, judge
from headrace.pipeline.subject import UnprovedError

# A whole run writes a few MB; all of it is read into memory.
LARGEST = 256 << 20


def command(digest: str) -> str:
    """Return what runs the suite against an engine of the image, in words for a person."""
    return f"'headrace needle URL … --image IMAGE@{digest} --out FOLDER'"


def take(folder: Path, kept: Path, digest: str) -> tuple[Verdict, str, tuple[Case, ...]]:
    """Judge the results in `folder`, and keep them as `kept`, which may be the same folder.

    Returns:
        Verdict, detail and cases of the suite.

    Raises:
        UnprovedError: they prove nothing of the image `digest`; what `kept` holds stays.
        MachineError: they cannot be kept.
    """
    try:
        files = {name: _read(folder / name) for name in FILES}
        judged = judge(files, digest)
    except OSError as failure:
        raise UnprovedError(
            f"{failure.filename}: expected a file that the suite wrote, found {failure.strerror}; "
            f"run {command(digest)}"
        ) from failure
    except UnprovedError as refused:
        raise UnprovedError(f"{folder}: {plain(str(refused))}; run {command(digest)}") from refused
    partial = kept.with_name(f"{kept.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, data in files.items():
            (partial / name).write_bytes(data)
        shutil.rmtree(kept, ignore_errors=True)
        partial.rename(kept)
    except OSError as failure:
        raise disk_error(failure, kept) from failure
    return judged


def _read(file: Path) -> bytes:
    # A pipe would be waited for without end.
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "another kind of file", str(file))
    if (size := file.stat().st_size) > LARGEST:
        raise OSError(errno.EFBIG, f"{size} bytes, more than {LARGEST}", str(file))
    return file.read_bytes()


def refuse_given(flavor: str, given: Mapping[str, Path], takes: Sequence[str]) -> None:
    """Refuse what cannot be given, before minutes of checks.

    Raises:
        ConfigurationError: `verify` runs that suite itself for `flavor`, or there is no folder.
    """
    for name, folder in given.items():
        if name not in takes:
            raise ConfigurationError(
                f"--{name}-results: expected none for flavor {flavor}, found {folder}: 'verify' "
                "runs that suite itself; leave it out"
            )
        if not folder.is_dir():
            raise ConfigurationError(
                f"--{name}-results {folder}: expected a folder, found none; give the one after "
                "--out of the run"
            )
