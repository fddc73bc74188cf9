"""Check pins and patch series within seconds, without the network once sources are fetched.

It checks the following:
- pins.toml loads and lacks no table that a flavor needs, and every fetched archive has the size
  and sha256 of its pin;
- what a component's build is asked for gives code that SM103 runs, and that its pin promises;
- FlashInfer's headers are of its release, and none of its stock modules is pinned;
- each series lists every patch file once, and nothing else lies in its folder;
- each patch has a subject that gives its name and well-formed header fields, applies to the
  release that is pinned, and names regression tests that exist;
- no patch on a wheel touches its RECORD, which is written when the wheel is packed again;
- the series applies to the pristine tree with no fuzz and no offset, blob ids included;
- written out again from commits, the series has the same bytes.

It does not build, import or run anything of a patched project.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from headrace.errors import ConfigurationError
from headrace.pipeline.aot import HEADERS
from headrace.pipeline.architectures import request_fault
from headrace.pipeline.diff import shown, split_lines
from headrace.pipeline.export import Commit, patch_bytes, scratch_repository, write_commits
from headrace.pipeline.fields import REPEATABLE
from headrace.pipeline.flashinfer import STOCK_MODULES
from headrace.pipeline.layout import Layout
from headrace.pipeline.manifest import hash_file
from headrace.pipeline.patchfile import PatchFile
from headrace.pipeline.pins import CORRECT, Pin, Pins, load_pins
from headrace.pipeline.problem import Problem, rewrite_with
from headrace.pipeline.records import RECORD
from headrace.pipeline.required_pins import REQUIRED, Required, absent, patched_tables
from headrace.pipeline.resolve import Resolved, resolve
from headrace.pipeline.series import Series, load_series, series_text
from headrace.pipeline.sources import archive_path, source_tree
from headrace.pipeline.testfinder import missing_test


def check(
    layout: Layout, flavor: str | None = None, required: Required = REQUIRED
) -> list[Problem]:
    """Return everything that is wrong, in the order of the line: pins, archives, series.

    Args:
        flavor: check only the tables, archives and series of this one.
        required: what pins.toml must hold of each flavor.

    Raises:
        ConfigurationError: there is no such flavor.
    """
    try:
        pins = load_pins(layout.pins)
    except ConfigurationError as broken:
        return [_pins_problem(layout, str(broken))]
    problems = _absent(layout, pins, flavor, required)
    problems += _archives(layout, pins, flavor)
    problems += _requests(layout, pins, flavor)
    problems += _companions(layout, pins)
    problems += _strays(layout, pins, required)
    for pin in pins.patched_projects(flavor):
        problems += check_project(layout, pin)
    return problems


def check_project(layout: Layout, pin: Pin) -> list[Problem]:
    """Return everything that is wrong with one project's series."""
    series, problems = load_series(layout, pin.id)
    readable = not problems
    for patch in series.patches:
        problems += _applies_to(patch, pin)
        problems += _regression_tests(patch, layout.root)
        problems += _written_when_packed(patch, pin)
    tree = source_tree(layout, pin)
    if not tree.is_dir():
        where = layout.pins.relative_to(layout.root).as_posix()
        line = line_of(layout.pins, pin.id)
        found = f"no {tree.relative_to(layout.root)}"
        run = "`python build.py fetch`"
        return [*problems, Problem(where, line, f"{pin.file} unpacked", found, run)]
    resolved = resolve(series.patches[: series.unbroken], tree)
    problems += resolved.problems
    if readable and not resolved.problems:
        problems += _export_differs(layout, series, resolved)
    return problems


def line_of(pins: Path, table: str, key: str = "") -> int:
    """Return the line (from 1) of `[table]` in a pins file, or of `key` in that table."""
    inside, found = False, 1
    for number, line in enumerate(pins.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("["):
            inside = line.strip() == f"[{table}]"
            found = number if inside else found
        elif inside and key and re.match(rf"{re.escape(key)}\s*=", line):
            return number
    return found


def _pins_problem(layout: Layout, said: str) -> Problem:
    where = layout.pins.relative_to(layout.root).as_posix()
    said = said.removeprefix(f"{layout.pins}:").strip()
    at = re.match(r"(\d+): ", said) or re.search(r"at line (\d+)", said)
    said = re.sub(r"^\d+: ", "", said).removesuffix(CORRECT)
    run = f"`python build.py check` again once {where} is corrected"
    return Problem(where, int(at[1]) if at else 1, "pins that load", said, run)


def _absent(layout: Layout, pins: Pins, flavor: str | None, required: Required) -> list[Problem]:
    where = layout.pins.relative_to(layout.root).as_posix()
    run = f"`python build.py check` again once {where} is corrected"
    problems = []
    for one in absent(pins, flavor, required):
        line, found = line_of(layout.pins, one.table, one.key), "none"
        wanted = f"{one.key} in [{one.table}]" if one.key else f"a table [{one.table}]"
        if one.key == "flavors":
            wanted = f"'{one.flavor}' in flavors of [{one.table}]"
            found = ", ".join(sorted(pins.get(one.table).flavors))
        problems.append(
            Problem(where, line, f"{wanted}, which flavor {one.flavor} needs", found, run)
        )
    return problems


def _archives(layout: Layout, pins: Pins, flavor: str | None) -> list[Problem]:
    where = layout.pins.relative_to(layout.root).as_posix()
    run = "`python build.py fetch`, which fetches it again"
    again = f"`python build.py check` again once {where} is corrected"
    problems = []
    for pin in pins.of_flavor(flavor) if flavor else pins.projects.values():
        archive = archive_path(layout, pin)
        if not pin.sha256 or not archive.is_file():
            continue
        name = archive.relative_to(layout.root)
        size = archive.stat().st_size
        found = hash_file(archive)
        if size != pin.size:
            line = line_of(layout.pins, pin.id, "size")
            # With the right hash it is the pin that is wrong, and fetching changes nothing.
            cure = again if found == pin.sha256 else run
            problems.append(Problem(where, line, f"{name} of {pin.size} bytes", f"{size}", cure))
        elif found != pin.sha256:
            line = line_of(layout.pins, pin.id, "sha256")
            wanted = f"sha256 {pin.sha256} of {name}"
            problems.append(Problem(where, line, wanted, found, run))
    return problems


def _requests(layout: Layout, pins: Pins, flavor: str | None) -> list[Problem]:
    where = layout.pins.relative_to(layout.root).as_posix()
    run = f"`python build.py check` again once {where} is corrected"
    return [
        Problem(
            where, line_of(layout.pins, pin.id, "compile-for"), fault.expected, fault.found, run
        )
        for pin in (pins.of_flavor(flavor) if flavor else pins.projects.values())
        if pin.compile_for and (fault := request_fault(pin))
    ]


def _companions(layout: Layout, pins: Pins) -> list[Problem]:
    """Compare the releases that are compiled together, and refuse modules in front of the sources.

    FlashInfer takes headers and GPU code of its own version alone, and stock modules before
    patched sources.
    """
    where = layout.pins.relative_to(layout.root).as_posix()
    run = f"`python build.py check` again once {where} is corrected"
    problems = []
    flashinfer, cubin = (pins.projects.get(name) for name in ("flashinfer", HEADERS))
    if flashinfer and cubin and cubin.version != flashinfer.version:
        line = line_of(layout.pins, cubin.id, "version")
        wanted = f"version {flashinfer.version}, FlashInfer's"
        problems.append(Problem(where, line, wanted, cubin.version, run))
    problems += [
        Problem(where, line_of(layout.pins, pin.id), f"no {STOCK_MODULES}", "a pin of it", run)
        for pin in pins.projects.values()
        if pin.name == STOCK_MODULES
    ]
    return problems


def _strays(layout: Layout, pins: Pins, required: Required) -> list[Problem]:
    problems = []
    # The series of a table that is absent is no stray: it is the table that is told.
    listed = {pin.id for pin in pins.patched_projects()} | patched_tables(required)
    for path in sorted(layout.patches.iterdir()) if layout.patches.is_dir() else []:
        where = path.relative_to(layout.root).as_posix()
        if path.is_dir() and path.name not in listed:
            wanted = f"a project with `patched = true` in {layout.pins.name}"
            problems.append(Problem(where, 1, wanted, path.name, f"`git rm -r {where}` or pin it"))
        elif path.is_dir():
            problems += _stray_files(layout, path)
        elif path.suffix == ".patch":
            run = f"`git mv {where} patches/PROJECT/` and list it in the series there"
            problems.append(Problem(where, 1, "patch files in a project's folder", "one here", run))
    return problems


def _stray_files(layout: Layout, folder: Path) -> list[Problem]:
    series = folder / "series"
    text = series.read_bytes().decode(errors="replace") if series.is_file() else ""
    known = {"series", *text.splitlines()}
    problems = []
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            where = path.relative_to(layout.root).as_posix()
            wanted = f"it listed in {series.relative_to(layout.root)}"
            run = f"`rm {where}`, or add a line to the series"
            problems.append(Problem(where, 1, wanted, "no line that names it", run))
    return problems


def _applies_to(patch: PatchFile, pin: Pin) -> list[Problem]:
    pinned = f"{pin.id} {pin.version}"
    return [
        Problem(
            patch.where,
            field.line,
            f"'Applies-To: {pinned}', which is pinned",
            repr(field.value),
            f"`python build.py rebase {pin.id} --to {pin.version}`, then {rewrite_with(pin.id)}",
        )
        for field in patch.fields
        if field.name == "Applies-To" and field.value != pinned
    ]


def _regression_tests(patch: PatchFile, root: Path) -> list[Problem]:
    problems = []
    for field in patch.fields:
        path, *names = field.value.split("::")
        if field.name != REPEATABLE or not names:
            continue
        missing = missing_test(root / path, names)
        if missing:
            run = f"`python -m pytest --collect-only {path}` to see the tests there"
            wanted = f"a test {field.value}"
            problems.append(Problem(patch.where, field.line, wanted, missing, run))
    return problems


def _written_when_packed(patch: PatchFile, pin: Pin) -> list[Problem]:
    if pin.kind != "pypi wheel":
        return []
    wanted = "no change of a wheel's RECORD, which packing writes"
    return [
        Problem(patch.where, change.line, wanted, f"one of {change.path}", rewrite_with(pin.id))
        for change in patch.changes
        if RECORD.fullmatch(change.path)
    ]


def _export_differs(layout: Layout, series: Series, resolved: Resolved) -> list[Problem]:
    run = rewrite_with(series.project)
    problems = []
    text = series_text([patch.name for patch in series.patches])
    if different := _first_difference(series.path.read_bytes(), text.encode()):
        where = series.path.relative_to(layout.root).as_posix()
        problems.append(Problem(where, *different, run))
    # Only the touched files: a diff depends on no other, and a whole tree takes seconds.
    touched = sorted(resolved.tree.changed)
    base = Commit("base\n", {p: b for p in touched if (b := resolved.tree.original(p))})
    with scratch_repository() as git:
        commits = write_commits(git, [base, *resolved.commits])[1:]
        for patch, commit in zip(series.patches, commits, strict=True):
            if different := _first_difference(patch.data, patch_bytes(git, commit)):
                problems.append(Problem(patch.where, *different, run))
    return problems


def _first_difference(found: bytes, expected: bytes) -> tuple[int, str, str] | None:
    """Return line (from 1), expected and found line of a file that refresh would change."""
    have, want = split_lines(found), split_lines(expected)
    for line, (is_, due) in enumerate(itertools.zip_longest(have, want, fillvalue=b""), 1):
        if is_ != due:
            wanted = f"{shown(due) if due else 'no more lines'}, as refresh writes it"
            return line, wanted, shown(is_) if is_ else "the end of the file"
    return None
