"""Compiles a test program against a source tree of LMCache, once per content."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
BACKENDS = Path("csrc", "storage_backends")
COMPILE_SECONDS = 240

COMMON = ("-std=c++17", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")
ADDRESS = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-O1", "-fsanitize=thread")
FUZZER = ("-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
_WRAPPED = ("recv", "recvmsg", "sendmsg", "writev", "poll")
COUNTING = ("-O0", "-DCOUNT_CALLS", *(f"-Wl,--wrap={name}" for name in _WRAPPED))

DRIVER = HERE / "resp_driver.cpp"
FUZZ_TARGET = HERE / "fuzz_reply.cpp"


class MissingToolError(Exception):
    """A compiler that the tests need is not installed."""


def driver(tree: Path, options: Sequence[str], cache: Path) -> Path:
    """Compile the driver with the tree's own RESP connector; return the program."""
    connector = tree / BACKENDS / "redis" / "connector.cpp"
    return _compile("g++", [DRIVER, connector], tree, options, cache)


def fuzzer(tree: Path, cache: Path) -> Path:
    """Compile the fuzz target with the tree's own reply reader; return the program."""
    # Debian's clang-14 alone has the second name only.
    compiler = next(filter(shutil.which, ("clang++", "clang++-14")), "clang++")
    return _compile(compiler, [FUZZ_TARGET], tree, FUZZER, cache)


def _compile(
    compiler: str, sources: Sequence[Path], tree: Path, options: Sequence[str], cache: Path
) -> Path:
    if shutil.which(compiler) is None:
        raise MissingToolError(
            f"{compiler} is not installed; Debian: apt-get install g++ clang libclang-rt-14-dev"
        )
    backends = tree / BACKENDS
    command = [
        compiler, *COMMON, *options, f"-I{backends}", f"-I{backends / 'redis'}",
        *map(str, sources),
    ]  # fmt: skip
    program = cache / f"{sources[0].stem}-{_digest(compiler, options, sources, backends)}"
    if program.exists():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        made = Path(folder, "program")
        done = subprocess.run(
            [*command, "-o", str(made)], capture_output=True, text=True, timeout=COMPILE_SECONDS
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}:\n{done.stderr}")
        # Two test runs may compile the same: the last one wins, and both are right.
        made.replace(program)
    return program


def _digest(compiler: str, options: Sequence[str], sources: Sequence[Path], backends: Path) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version + "\0".join(options).encode())
    for path in (*sources, *sorted(backends.rglob("*.h"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
