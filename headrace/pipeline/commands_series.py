"""Commands on the patch series: check, patch, edit, refresh, rebase."""

from __future__ import annotations

import functools
from typing import Annotated

import typer
from packaging.version import InvalidVersion, Version

from headrace.console import say
from headrace.errors import ConfigurationError, SeriesError
from headrace.pipeline import sources, wheels
from headrace.pipeline.check import check as find_problems
from headrace.pipeline.edit import edit as open_series
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import build_lock
from headrace.pipeline.options import Json, Project, emit
from headrace.pipeline.pins import Pin, load_pins
from headrace.pipeline.rebase import rebase as judge
from headrace.pipeline.refresh import refresh as write_series
from headrace.pipeline.regression import passes_on_release


def check(
    flavor: Annotated[str, typer.Option(help="Only what this flavor needs; default: all.")] = "",
    as_json: Json = False,
) -> None:
    """Check pins, archives and every patch series: no fuzz, no offset, nothing stray."""
    layout = Layout.find()
    with build_lock(layout):
        _fetch_all(layout, flavor or None)
        problems = find_problems(layout, flavor or None)
    emit(problems, as_json)
    for problem in problems:
        say(str(problem))
    if problems:
        raise SeriesError(f"{len(problems)} problem(s) in pins and patches; each is named above")
    say("pins and patches: no problem")


def patch(as_json: Json = False) -> None:
    """Apply each series to a fresh tree under build/patched/, all of it or nothing."""
    layout = Layout.find()
    with build_lock(layout):
        _fetch_all(layout)
        trees = [wheels.patch_project(layout, p) for p in load_pins(layout.pins).patched_projects()]
    emit(trees, as_json)


def edit(
    project: Project,
    discard: Annotated[
        bool, typer.Option("--discard", help="Drop commits that were never written back.")
    ] = False,
) -> None:
    """Open a series as commits of a git work tree, build/edit/PROJECT."""
    layout = Layout.find()
    with build_lock(layout):
        _fetch(layout, project)
        folder = open_series(layout, project, discard=discard)
    say(f"{folder}: one commit a patch; change them with git, then `build.py refresh {project}`")


def refresh(project: Project, as_json: Json = False) -> None:
    """Write the commits of build/edit/PROJECT back to patches/PROJECT, byte-stable."""
    layout = Layout.find()
    with build_lock(layout):
        _fetch(layout, project)
        result = write_series(layout, project)
    for what, names in (("written", result.written), ("removed", result.removed)):
        for name in names:
            say(f"{what}: patches/{project}/{name}")
    if not result.written and not result.removed:
        say(f"patches/{project}: nothing changed")
    emit(result, as_json)


def rebase(
    project: Project,
    to: Annotated[str, typer.Option(help="The release to look at, e.g. 0.5.6.")],
    run_tests: Annotated[
        bool,
        typer.Option(
            "--run-tests",
            help="Also run the regression tests on that release, unpatched and built (minutes).",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say of each patch whether a new release takes it, has it, or conflicts; change nothing."""
    _require_version(to)
    layout = Layout.find()
    with build_lock(layout):
        pin = _fetch(layout, project)
        tree = sources.fetch_other_version(layout, pin, to)
        passes = None
        if run_tests:
            site = wheels.build_release(layout, pin, tree, to)
            passes = functools.partial(passes_on_release, layout, site)
        verdicts = judge(layout, project, to, tree, passes)
    for verdict in verdicts:
        say(str(verdict))
    emit(verdicts, as_json)


def _require_version(text: str) -> None:
    try:
        Version(text)
    except InvalidVersion as wrong:
        raise ConfigurationError(
            f"--to: expected a version such as 0.5.6, found '{text}'"
        ) from wrong


def _fetch(layout: Layout, project: str) -> Pin:
    pin = load_pins(layout.pins).get_patched(project)
    sources.fetch_pin(layout, pin)
    return pin


def _fetch_all(layout: Layout, flavor: str | None = None) -> None:
    for pin in load_pins(layout.pins).patched_projects(flavor):
        sources.fetch_pin(layout, pin)


COMMANDS = (check, patch, edit, refresh, rebase)
