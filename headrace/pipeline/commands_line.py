"""Commands along the line: fetch, wheels, image, verify, publish, build, and what checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.console import say
from headrace.errors import SeriesError
from headrace.pipeline import debian, lockfiles, sources
from headrace.pipeline import image as images
from headrace.pipeline import upstream as suites
from headrace.pipeline import wheels as wheel_stage
from headrace.pipeline.check import check as find_problems
from headrace.pipeline.flashinfer import Mode
from headrace.pipeline.flavor_wheels import build_wheels, require_fitting, require_place
from headrace.pipeline.layout import Layout
from headrace.pipeline.lock_pins import lock_pins, require_locked
from headrace.pipeline.manifest import build_lock
from headrace.pipeline.options import BaseImage, Flavor, Json, Module, NeedleResults, emit
from headrace.pipeline.pins import FLAVORS, require_flavor
from headrace.pipeline.publish import publish as push
from headrace.pipeline.report import load_report, refuse_unless_publishable, report_path
from headrace.pipeline.reproduce import reproduce as build_twice
from headrace.pipeline.verify import prove, require_green


def fetch(
    flavor: Annotated[str, typer.Option(help="cpu, sm103 or all.")] = "all", as_json: Json = False
) -> None:
    """Bring every pinned upstream into build/, checked by sha256 and unpacked safely."""
    layout = Layout.find()
    with build_lock(layout):
        archives = _fetch(layout, None if flavor == "all" else flavor)
    emit(archives, as_json)


def wheels(
    flavor: Flavor = "cpu",
    stock: Annotated[
        bool, typer.Option("--stock", help="Also build LMCache as released, for comparisons.")
    ] = False,
    module: Module = "jit",
    as_json: Json = False,
) -> None:
    """Build the patched wheels into build/wheels/FLAVOR/."""
    require_fitting(flavor, module, stock=stock)
    layout = Layout.find()
    require_place(layout)
    with build_lock(layout):
        built = _wheels(layout, flavor, module)
        if stock:
            built.append(wheel_stage.build_stock(layout))
            wheel_stage.site(layout, "stock", built[-1])
    emit(built, as_json)


def image(
    flavor: Flavor = "cpu",
    module: Module = "jit",
    base_image: BaseImage = "",
    as_json: Json = False,
) -> None:
    """Build the image of a flavor as an OCI layout, build/image/FLAVOR/."""
    require_fitting(flavor, module)
    images.require_digest(base_image or None)
    layout = Layout.find()
    require_place(layout)
    with build_lock(layout):
        _fetch(layout, flavor)
        _wheels(layout, flavor, module)
        built = images.build_image(layout, flavor, base_image=base_image or None)
    emit(built, as_json)


def verify(
    image: Annotated[str, typer.Argument(help="A flavor, or an image that the daemon knows.")],
    needle_results: NeedleResults = None,
    as_json: Json = False,
) -> None:
    """Prove an image, run the suites in it, and write build/report/DIGEST.json."""
    layout = Layout.find()
    with build_lock(layout):
        report = prove(layout, image, {"needle": needle_results} if needle_results else {})
    emit(report, as_json)
    require_green(layout, report)
    say(f"{report.image}: green; report: {report_path(layout, report.image)}")


def publish(
    image: Annotated[str, typer.Argument(help="A flavor, or the digest of a built image.")],
    to: Annotated[str, typer.Option(help="HOST[:PORT]/REPOSITORY:TAG.")],
    as_json: Json = False,
) -> None:
    """Push a proved image by digest, read it back, then tag it; refuse anything unproved."""
    layout = Layout.find()
    with build_lock(layout):
        published = push(layout, image, to)
    emit(published, as_json)


def build(
    flavor: Flavor = "cpu",
    module: Module = "jit",
    base_image: BaseImage = "",
    as_json: Json = False,
) -> None:
    """All of the line up to a verified image; a second run with nothing new does nothing."""
    require_fitting(flavor, module)
    images.require_digest(base_image or None)
    layout = Layout.find()
    require_place(layout)
    with build_lock(layout):
        _fetch(layout, flavor)
        if problems := find_problems(layout, flavor):
            for problem in problems:
                say(str(problem))
            raise SeriesError(f"{len(problems)} problem(s) in pins and patches")
        _wheels(layout, flavor, module)
        built = images.build_image(layout, flavor, base_image=base_image or None)
        path = report_path(layout, built.digest)
        # The digest covers every byte that the proof looked at, so a green report stays true.
        if not path.is_file() or load_report(path).verdict != "green":
            require_green(layout, prove(layout, flavor))
        refuse_unless_publishable(load_report(path), built.digest)
    say(f"headrace {built.version} ({flavor}): {built.digest}, proved; report: {path}")
    emit(built, as_json)


def lock(
    what: Annotated[
        Literal["all", "pins", "python", "debian"],
        typer.Argument(help="Which locks to resolve anew."),
    ] = "all",
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether the mirror still has what is locked.")
    ] = False,
) -> None:
    """Lock what pins.toml has no hash for, and resolve Python and Debian packages anew."""
    layout = Layout.find()
    with build_lock(layout):
        if check:
            debian.fetch_debian(layout)
            say("every locked Debian package is at hand")
            return
        if what in ("all", "pins"):
            lock_pins(layout)
        if what == "pins":
            require_locked(layout)
        if what in ("all", "python"):
            for path in lockfiles.lock_python(layout):
                say(f"written: {path.relative_to(layout.root)}")
        if what in ("all", "debian"):
            debian.lock_debian(layout)


def reproduce(flavor: Flavor = "cpu", module: Module = "jit", as_json: Json = False) -> None:
    """Build wheels and image a second time, without any cache, and compare every byte."""
    require_fitting(flavor, module)
    layout = Layout.find()
    require_place(layout)
    with build_lock(layout):
        _fetch(layout, flavor)
        _wheels(layout, flavor, module)
        images.build_image(layout, flavor)
        result = build_twice(
            layout,
            flavor,
            build_wheels=lambda copy, name: build_wheels(copy, name, module, use_cache=False),
        )
    emit(result, as_json)


def upstream(
    scope: Annotated[Literal["touched", "all"], typer.Option(help="Which of them.")] = "touched",
    record: Annotated[
        bool, typer.Option("--record", help="Write the stock baseline instead (an hour).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run upstream's own tests on the patched LMCache and compare with the stock baseline."""
    layout = Layout.find()
    with build_lock(layout):
        if record:
            site = wheel_stage.site(layout, "stock", wheel_stage.build_stock(layout))
            say(f"written: {suites.record_baseline(layout, site=site)}")
            return
        wheels = _wheels(layout, "cpu", "jit")
        site = wheel_stage.site(layout, "patched", wheels[0])
        report = suites.run_upstream(layout, scope=scope, site=site)
    emit(report.as_json(), as_json)
    report.require_green()


def _fetch(layout: Layout, flavor: str | None) -> list[Path]:
    if flavor:
        require_flavor(flavor)
    archives = sources.fetch(layout, flavor)
    for name in (flavor,) if flavor else FLAVORS:
        lockfiles.fetch_wheelhouse(layout, name)
    debian.fetch_debian(layout)
    return archives


def _wheels(layout: Layout, flavor: str, module: Mode) -> list[Path]:
    sources.fetch(layout, flavor)
    built = build_wheels(layout, flavor, module)
    if flavor == "cpu":
        wheel_stage.site(layout, "patched", built[0])
    return built


COMMANDS = (build, fetch, wheels, image, verify, publish, lock, reproduce, upstream)
