"""The CUDA toolkit of flavor "sm103", from wheels alone: build/cuda, a Python environment.

It holds the pinned torch, nvcc and cuobjdump of locks/sm103-build.txt, and what LMCache builds
with. No GPU, driver or installed CUDA is needed.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.console import call, disk_error, working
from headrace.errors import ConfigurationError, MachineError, SourceError
from headrace.pipeline import sources
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import Manifest, hash_file, write_atomically
from headrace.pipeline.pins import load_pins
from headrace.pipeline.requirements import read_requirements
from headrace.pipeline.scratch import scratch

LOCK = "sm103-build.txt"


@dataclass(frozen=True)
class Toolkit:
    """One CUDA toolkit and the Python that has torch for it.

    Attributes:
        home: what builds know as CUDA_HOME.
    """

    python: Path
    home: Path

    @property
    def nvcc(self) -> Path:
        return self.home / "bin" / "nvcc"

    @property
    def cuobjdump(self) -> Path:
        return self.home / "bin" / "cuobjdump"

    @property
    def whole(self) -> bool:
        """Whether its programs are there; somebody may have removed a part of its gigabytes."""
        return all(path.exists() for path in (self.python, self.nvcc, self.cuobjdump))

    def release(self) -> tuple[int, int]:
        """Return nvcc's release, e.g. (13, 0).

        Raises:
            MachineError: nvcc does not run, or does not say.
        """
        said = call([self.nvcc, "--version"], error=MachineError)
        found = re.search(r"release (\d+)\.(\d+)", said)
        if found is None:
            raise MachineError(f"{self.nvcc}: expected a release, found {said.strip()!r}")
        return int(found[1]), int(found[2])

    def architectures(self) -> list[str]:
        """Return what nvcc can compile for, e.g. compute_103."""
        return call([self.nvcc, "--list-gpu-arch"], error=MachineError).split()


def cuda_toolkit(layout: Layout) -> Toolkit:
    """Make build/cuda unless it is there already; return the toolkit in it.

    Raises:
        ConfigurationError: its lock is missing or empty, or an entry has no hash.
        SourceError: a wheel is gone or does not match its hash.
        MachineError: the disk is full.
    """
    pin = load_pins(layout.pins).get("torch")
    # Before half a gigabyte comes.
    if not (layout.locks / LOCK).is_file():
        raise ConfigurationError(
            f"{layout.locks / LOCK}: expected the lock of the CUDA toolkit, found none; "
            "run `python build.py lock python`"
        )
    # And before the toolkit that is there is thrown away for it.
    read_requirements(layout.locks / LOCK)
    torch = sources.fetch_pin(layout, pin)
    lock = layout.locks / LOCK
    folder = layout.build / "cuda"
    # The last thing that is written, so that it stands for the whole folder.
    done = folder / "headrace-lock"
    inputs = {pin.file: pin.sha256, LOCK: hash_file(lock), "stage": hash_file(Path(__file__))}

    def make() -> None:
        # First, since a kill may leave the programs and take what they need.
        done.unlink(missing_ok=True)
        _clear(folder)
        _install(layout, folder, torch, lock)
        _complete(_home(folder))
        write_atomically(done, f"{inputs[LOCK]}\n")

    toolkit = Toolkit(folder / "bin" / "python", _home(folder))
    try:
        if not toolkit.whole:
            done.unlink(missing_ok=True)
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    Manifest(layout).run("cuda toolkit", inputs, [done], make)
    return toolkit


def existing_toolkit(layout: Layout) -> Toolkit:
    """Return the toolkit in build/cuda.

    Raises:
        MachineError: it was not made; making it takes gigabytes and minutes.
    """
    folder = layout.build / "cuda"
    made = Toolkit(folder / "bin" / "python", _home(folder))
    if not (folder / "headrace-lock").is_file() or not made.whole:
        raise MachineError(
            f"{folder}: expected the CUDA toolkit, found none; "
            "run 'python build.py wheels --flavor sm103'"
        )
    return made


def _clear(folder: Path) -> None:
    """Remove what is in `folder`, which may be a link or another disk: it takes gigabytes."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _home(folder: Path) -> Path:
    return folder / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13"


def _install(layout: Layout, folder: Path, torch: Path, lock: Path) -> None:
    log = layout.logs / "cuda.log"
    log.unlink(missing_ok=True)
    pip: list[str | Path] = [
        sys.executable, "-m", "pip", "--python", folder / "bin" / "python",
        "--disable-pip-version-check", "install", "--no-deps", "--no-compile",
    ]  # fmt: skip
    with scratch(layout) as env, working(f"installing torch and the CUDA toolkit of locks/{LOCK}"):
        call(
            [sys.executable, "-m", "venv", "--without-pip", folder],
            error=MachineError, log=log,
        )  # fmt: skip
        # By its file: a CPU build of the same version in one of pip's folders would win.
        call([*pip, "--no-index", torch], error=SourceError, env=env, log=log)
        call(
            [*pip, "--only-binary", ":all:", "--require-hashes", "--requirement", lock],
            error=SourceError, env=env, log=log,
            advice="run the command again; or lock anew: `python build.py lock python`",
        )  # fmt: skip


def _complete(home: Path) -> None:
    """Give the wheels' toolkit the names that linkers ask for and wheels leave out."""
    (home / "lib64").symlink_to("lib")
    (home / "lib" / "libcudart.so").symlink_to("libcudart.so.13")
