"""Help and logs where the encoding of the locale is not that of the words or of a path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.console import call
from headrace.errors import MachineError


def test_help_is_printed_where_the_encoding_lacks_its_frames() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from headrace.pipeline.cli import main; main()", "--help"],
        capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"Pinned sources ? patched wheels" in done.stdout


def test_a_path_of_another_encoding_gets_into_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    call(["true", os.fsdecode(b"gr\xf6\xdfe")], error=MachineError, log=log)
    assert b"gr\xf6\xdfe" in log.read_bytes()
