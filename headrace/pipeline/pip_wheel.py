"""Build one wheel with pip from a copy of a source tree: no isolation, no network, fixed times."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.console import call, disk_error, working
from headrace.errors import WheelError
from headrace.pipeline import callers_settings, prefix_maps
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file

# The earliest time a zip archive can hold, so the wheel's bytes never depend on a clock.
EPOCH = "315532800"
TIMEOUT_S = 7200.0


def stage_hash(stage: str) -> str:
    """Return what changes with the code that makes a wheel: of the file `stage`, and of these."""
    return "".join(hash_file(Path(each)) for each in (stage, __file__, prefix_maps.__file__))


def build_copy(
    layout: Layout,
    tree: Path,
    work: Path,
    wheel: Path,
    env: Mapping[str, str],
    python: Path | None = None,
) -> None:
    """Copy `tree` to `work` and build `wheel` there; see `build`."""
    try:
        if work.exists():
            shutil.rmtree(work)
        # The build writes into its source folder, which must stay what its hashes say.
        shutil.copytree(tree, work, symlinks=True)
    except OSError as failure:
        raise disk_error(failure, work) from failure
    build(layout, work, wheel, env, python)
    shutil.rmtree(work, ignore_errors=True)


def build(
    layout: Layout, work: Path, wheel: Path, env: Mapping[str, str], python: Path | None = None
) -> None:
    """Build `wheel` from the sources in `work`; older wheels of its name are removed.

    Args:
        env: added to this process's environment, of which what is for compilers is taken away.
        python: builds with this interpreter and what is installed there; default: our own.

    Raises:
        WheelError: the build failed, or made another file; the message names the log.
    """
    output = work.with_name(f"{work.name}.out")
    shutil.rmtree(output, ignore_errors=True)
    log = layout.logs / f"{wheel.parent.name}-{wheel.name.split('-')[0]}.log"
    log.unlink(missing_ok=True)
    other: list[str | Path] = ["--python", python] if python else []
    env = {"SOURCE_DATE_EPOCH": EPOCH, "PYTHONHASHSEED": "0", **env}
    without = callers_settings.unset(env)
    with working(f"building {wheel.name}"):
        call(
            [
                *(["env", *without] if without else []), sys.executable, "-m", "pip", *other,
                "--disable-pip-version-check", "wheel", "--verbose", "--no-deps", "--no-index",
                "--no-build-isolation", "--wheel-dir", output, work,
            ],
            error=WheelError,
            env=env,
            log=log,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    made = sorted(output.glob("*.whl"))
    if [path.name for path in made] != [wheel.name]:
        names = ", ".join(path.name for path in made) or "none"
        raise WheelError(f"{output}: expected {wheel.name}, found {names}; see {log}")
    wheel.parent.mkdir(parents=True, exist_ok=True)
    for older in wheel.parent.glob(f"{wheel.name.split('-')[0]}-*.whl"):
        older.unlink()
    made[0].replace(wheel)
    shutil.rmtree(output)
