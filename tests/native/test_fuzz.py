"""The reply reader under libFuzzer: shortly here, for long with tests/native/fuzz.py."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native import corpus, toolchain
from tests.native.fuzz import command

SECONDS = 10
DEADLINE = 60


def fuzz(program: Path, folder: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    findings = folder / "findings"
    findings.mkdir()
    corpus.write(folder / "corpus")
    line = command(program, folder / "corpus", findings, seconds)
    return subprocess.run(line, capture_output=True, text=True, timeout=seconds + DEADLINE)


def test_no_bytes_break_a_property(patched_tree: Path, programs: Path, tmp_path: Path) -> None:
    done = fuzz(toolchain.fuzzer(patched_tree, programs), tmp_path, SECONDS)
    assert done.returncode == 0, done.stderr
    stats = dict(line[6:].split(":") for line in done.stderr.splitlines() if line[:6] == "stat::")
    assert int(stats["number_of_executed_units"]) > 1000 * SECONDS


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        # one byte of a drained value is left in the stream
        ("drain(size + 2)", "drain(size + 1)"),
        # a reply that is followed by bytes of another counts as in step
        ("in_step = behind_line() == 0", "in_step = true"),
        # the header is compared without its length's last digit
        ("have_) == header)", "have_).substr(0, 3) == header.substr(0, 3))"),
        # the trailer is not looked at
        ("trailer[0] != '\\r' || trailer[1] != '\\n'", "trailer[0] == trailer[1]"),
        # bytes of the value go one place too far
        ("{buf + got, len - got}", "{buf + got, len - got + 1}"),
    ],
)
def test_a_broken_reader_is_found(
    patched_tree: Path, programs: Path, tmp_path: Path, right: str, wrong: str
) -> None:
    tree = tmp_path / "tree"
    folder = tree / toolchain.BACKENDS / "redis"
    folder.mkdir(parents=True)
    header = shutil.copy(patched_tree / toolchain.BACKENDS / "redis" / "resp_reply.h", folder)
    text = Path(header).read_text()
    assert text.count(right) == 1
    Path(header).write_text(text.replace(right, wrong))
    done = fuzz(toolchain.fuzzer(tree, programs), tmp_path, SECONDS)
    assert done.returncode != 0
    # by a property of the target, or by writing where nothing may be written
    assert "fuzz_reply.cpp" in done.stderr or "AddressSanitizer" in done.stderr
