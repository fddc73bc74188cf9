"""`check` names file and line of every fault, all of them in one run."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError
from headrace.pipeline.check import check, line_of
from headrace.pipeline.layout import Layout
from headrace.pipeline.pins import load_pins
from tests.pipeline.toy import ARCHIVE, PINS, Checkout, message_of, numbers, text

REWRITE = "run `python build.py edit toy`, then `python build.py refresh toy`"
Break = Callable[[Checkout], object]


@pytest.fixture
def good(checkout: Checkout) -> Checkout:
    checkout.series(
        ("First", {"toy/numbers.py": numbers(line_20="twenty"), "toy/new.py": text(b"new\n")}),
        ("Second", {"toy/numbers.py": numbers(line_20="twenty", line_3="three  ")}),
    )
    return checkout


def found(checkout: Checkout) -> list[str]:
    return [str(problem) for problem in checkout.problems()]


def link_first_patch(checkout: Checkout) -> None:
    path = checkout.folder / "first.patch"
    path.symlink_to(path.rename(checkout.layout.root / "elsewhere.patch"))


def test_a_good_checkout_has_no_problem(good: Checkout) -> None:
    assert found(good) == []
    assert good.problems("cpu") == []
    assert good.problems("sm103") == []


def test_check_writes_nothing_into_the_checkout(good: Checkout) -> None:
    before = sorted(good.layout.root.rglob("*"))
    good.problems()
    assert sorted(good.layout.root.rglob("*")) == before


def test_another_flavor_is_named(good: Checkout) -> None:
    with pytest.raises(ConfigurationError, match="expected one of cpu, sm103, found 'gpu'"):
        good.problems("gpu")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(
            lambda c: c.replace("first.patch", "Mode: in-process", "Mode: inprocess"),
            "patches/toy/first.patch:10: expected 'Mode:' to be 'in-process', 'multi-process', "
            f"'native client' or 'kernel', found 'inprocess'; {REWRITE}",
            id="malformed header",
        ),
        pytest.param(
            lambda c: c.replace("second.patch", "@@ -1,6 +1,6 @@", "@@ -1,7 +1,6 @@"),
            "patches/toy/second.patch:19: expected 7 old and 6 new lines as the hunk header says, "
            "found 6 old and 6 new; run `git log -p patches/toy/second.patch` to see who changed "
            "it by hand",
            id="wrong counts",
        ),
        pytest.param(
            lambda c: c.replace("second.patch", "@@ -1,6 +1,6 @@", "@@ -3,6 +3,6 @@"),
            "patches/toy/second.patch:19: expected these lines at line 3 exactly, found them at "
            f"line 1 (applies only with an offset of -2); {REWRITE}",
            id="offset",
        ),
        pytest.param(
            lambda c: c.replace("second.patch", "\n line 1\n", "\n line one\n"),
            "patches/toy/second.patch:20: expected 'line one' at line 1, found 'line 1' (applies "
            f"only with fuzz 1); {REWRITE}",
            id="fuzz",
        ),
        pytest.param(
            lambda c: (c.folder / "stray.patch").write_text("x"),
            "patches/toy/stray.patch:1: expected it listed in patches/toy/series, found no line "
            "that names it; run `rm patches/toy/stray.patch`, or add a line to the series",
            id="stray patch",
        ),
        pytest.param(
            lambda c: (c.folder / "notes.orig").write_text("x"),
            "patches/toy/notes.orig:1: expected it listed in patches/toy/series, found no line "
            "that names it; run `rm patches/toy/notes.orig`, or add a line to the series",
            id="stray file",
        ),
        pytest.param(
            lambda c: c.write(c.layout.patches, {"ghost/series": b""}),
            "patches/ghost:1: expected a project with `patched = true` in pins.toml, found ghost; "
            "run `git rm -r patches/ghost` or pin it",
            id="stray project",
        ),
        pytest.param(
            lambda c: (c.layout.patches / "lost.patch").write_text("x"),
            "patches/lost.patch:1: expected patch files in a project's folder, found one here; "
            "run `git mv patches/lost.patch patches/PROJECT/` and list it in the series there",
            id="patch without project",
        ),
        pytest.param(
            lambda c: (c.folder / "second.patch").unlink(),
            "patches/toy/series:3: expected a file second.patch, found none; "
            "run `python build.py refresh toy` or correct patches/toy/series",
            id="missing file",
        ),
        pytest.param(
            lambda c: c.replace("series", "second.patch", "second.patch\nfirst.patch"),
            "patches/toy/series:4: expected each patch once, found first.patch twice; "
            "run `python build.py refresh toy` or correct patches/toy/series",
            id="duplicate",
        ),
        pytest.param(
            lambda c: c.write(c.layout.sources, {"archives/toy-1.0.tar.gz": ARCHIVE.upper()}),
            f"pins.toml:5: expected sha256 {hashlib.sha256(ARCHIVE).hexdigest()} of "
            "build/sources/archives/toy-1.0.tar.gz, found "
            f"{hashlib.sha256(ARCHIVE.upper()).hexdigest()}; run `python build.py fetch`, which "
            "fetches it again",
            id="another sha256",
        ),
        pytest.param(
            lambda c: c.write(c.layout.sources, {"archives/toy-1.0.tar.gz": b"short"}),
            f"pins.toml:6: expected build/sources/archives/toy-1.0.tar.gz of {len(ARCHIVE)} bytes, "
            "found 5; run `python build.py fetch`, which fetches it again",
            id="another size",
        ),
        pytest.param(
            lambda c: c.pins(PINS.replace(f"size = {len(ARCHIVE)}", "size = 7")),
            "pins.toml:6: expected build/sources/archives/toy-1.0.tar.gz of 7 bytes, found "
            f"{len(ARCHIVE)}; run `python build.py check` again once pins.toml is corrected",
            id="another size in the pin",
        ),
        pytest.param(
            link_first_patch,
            "patches/toy/series:2: expected a file first.patch, found a symbolic link; "
            "run `python build.py refresh toy` or correct patches/toy/series",
            id="a link",
        ),
        pytest.param(
            lambda c: c.pins(PINS.replace('["cpu"]', '["gpu"]')),
            "pins.toml:1: expected pins that load, found [toy] flavors.0: Input should be 'cpu' or "
            "'sm103', found 'gpu'; run `python build.py check` again once pins.toml is corrected",
            id="unknown flavor",
        ),
        pytest.param(
            lambda c: c.pins(PINS.replace('"1.0"', "1.0.0")),
            "pins.toml:2: expected pins that load, found expected TOML, found Expected newline or "
            "end of document after a statement (at line 2, column 14); "
            "run `python build.py check` again once pins.toml is corrected",
            id="not TOML",
        ),
        pytest.param(
            lambda c: c.replace("first.patch", "::test_toy", "::test_other"),
            "patches/toy/first.patch:11: expected a test tests/test_toy.py::test_other, found no "
            "test function test_other in it; run `python -m pytest --collect-only "
            "tests/test_toy.py` to see the tests there",
            id="missing test",
        ),
        pytest.param(
            lambda c: c.replace("first.patch", "test_toy.py", "test_boy.py"),
            "patches/toy/first.patch:11: expected a test tests/test_boy.py::test_toy, found no "
            "such file; run `python -m pytest --collect-only tests/test_boy.py` to see the tests "
            "there",
            id="missing test file",
        ),
        pytest.param(
            lambda c: c.replace("first.patch", "Applies-To: toy 1.0", "Applies-To: toy 0.9"),
            "patches/toy/first.patch:9: expected 'Applies-To: toy 1.0', which is pinned, found "
            "'toy 0.9'; run `python build.py rebase toy --to 1.0`, then `python build.py edit "
            "toy`, then `python build.py refresh toy`",
            id="another release",
        ),
        pytest.param(
            lambda c: c.replace("second.patch", "From: headrace", "From: headraze"),
            "patches/toy/second.patch:2: expected 'From: headrace maintainers "
            "<maintainers@headrace.invalid>', as refresh writes it, found 'From: headraze "
            f"maintainers <maintainers@headrace.invalid>'; {REWRITE}",
            id="other author",
        ),
        pytest.param(
            lambda c: c.replace("second.patch", "Subject: ", "Subject: [PATCH 2/2] "),
            "patches/toy/second.patch:4: expected 'Subject: Second', as refresh writes it, found "
            f"'Subject: [PATCH 2/2] Second'; {REWRITE}",
            id="numbered subject",
        ),
        pytest.param(
            lambda c: c.replace("series", "# Written", "# written"),
            "patches/toy/series:1: expected '# Written by `python build.py refresh`: the order of "
            "application, one patch…', as refresh writes it, found '# written by `python "
            f"build.py refresh`: the order of application, one patch…'; {REWRITE}",
            id="other series",
        ),
        pytest.param(
            lambda c: c.replace("second.patch", "+three  \n", "+three\n"),
            None,
            id="trailing space lost",
        ),
        pytest.param(
            lambda c: c.replace("first.patch", "b/toy/new.py", "b/../../new.py"),
            "patches/toy/first.patch:15: expected one name, or 'rename from' and 'rename to', "
            "found neither; run `git log -p patches/toy/first.patch` to see who changed it by hand",
            id="two names",
        ),
        pytest.param(
            lambda c: (c.folder / "first.patch").write_bytes(
                (c.folder / "first.patch").read_bytes().replace(b"toy/new.py", b"../new.py")
            ),
            "patches/toy/first.patch:15: expected a path inside the tree, found '../new.py'; "
            "run `git log -p patches/toy/first.patch` to see who changed it by hand",
            id="path outside",
        ),
        pytest.param(
            lambda c: (c.folder / "first.patch").write_bytes(
                (c.folder / "first.patch").read_bytes().replace(b"\n", b"\r\n")
            ),
            "patches/toy/first.patch:1: expected LF line ends, found CRLF (did an editor or git "
            "convert them?); run `git log -p patches/toy/first.patch` to see who changed it by "
            "hand",
            id="CRLF",
        ),
        pytest.param(
            lambda c: shutil.rmtree(c.tree),
            "pins.toml:1: expected toy-1.0.tar.gz unpacked, found no build/sources/toy-1.0; "
            "run `python build.py fetch`",
            id="not fetched",
        ),
    ],
)
def test_a_fault_is_named_with_file_and_line(
    good: Checkout, damage: Break, expected: str | None
) -> None:
    damage(good)
    said = found(good)
    if expected is None:
        # The message holds a blob id; that the file is named is what counts.
        assert [line.split(" to be ")[0] for line in said] == [
            "patches/toy/second.patch:15: expected toy/numbers.py"
        ]
    else:
        assert said == [expected]


def test_the_record_of_a_wheel_is_not_patched(good: Checkout) -> None:
    record = "toy-1.0.dist-info/RECORD"
    good.write(good.tree, {record: b"README,,\n"})
    good.series(("Only", {record: text(b"")}))
    assert found(good) == []
    good.pins(PINS.replace("pypi sdist", "pypi wheel"))
    line = good.line_of("only.patch", "diff --git")
    assert found(good) == [
        f"patches/toy/only.patch:{line}: expected no change of a wheel's RECORD, which packing "
        f"writes, found one of {record}; {REWRITE}"
    ]


def test_a_request_for_another_gpu_is_named(good: Checkout) -> None:
    asked = 'compile-for = "10.0a"\ndevice-code = ["sm_103a"]'
    other = PINS.replace("toy", "lmcache").replace("patched = true", asked)
    good.pins(f"{PINS}\n{other}")
    (line,) = found(good)
    at = good.layout.pins.read_text().splitlines().index('compile-for = "10.0a"') + 1
    assert line == (
        f"pins.toml:{at}: expected code that runs on SM103, found '10.0a', whose code runs on "
        "SM100 alone; run `python build.py check` again once pins.toml is corrected"
    )


def test_headers_of_another_release_and_stock_modules_are_named(good: Checkout) -> None:
    pin = PINS.replace("patched = true", "")
    tables = [
        pin.replace("[toy]", "[flashinfer]"),
        pin.replace("[toy]", "[flashinfer-cubin]").replace('version = "1.0"', 'version = "1.1"'),
        pin.replace("[toy]", "[flashinfer-jit-cache]"),
    ]
    good.pins("\n".join([PINS, *tables]))
    lines = good.layout.pins.read_text().splitlines()
    other, stock = lines.index('version = "1.1"') + 1, lines.index("[flashinfer-jit-cache]") + 1
    run = "run `python build.py check` again once pins.toml is corrected"
    assert found(good) == [
        f"pins.toml:{other}: expected version 1.0, FlashInfer's, found 1.1; {run}",
        f"pins.toml:{stock}: expected no flashinfer-jit-cache, found a pin of it; {run}",
    ]


PINNED = load_pins(Layout.find().pins).projects
# Every table of this checkout, and every key by which more is done or proved than without it.
NEEDED = [(table, key) for table, pin in PINNED.items()
          for key in ("", "patched", "compile-for", "device-code")
          if not key or getattr(pin, key.replace("-", "_"))]  # fmt: skip


@pytest.fixture
def committed(tmp_path: Path) -> Layout:
    """The checkout's own pins and folders of patches, with nothing fetched and no patch."""
    layout = Layout(tmp_path)
    layout.pins.write_text(Layout.find().pins.read_text())
    for pin in load_pins(layout.pins).patched_projects():
        (layout.patches / pin.id).mkdir(parents=True)
        (layout.patches / pin.id / "series").write_text("")
    return layout


def of_tables(layout: Layout) -> list[str]:
    return [str(found) for found in check(layout) if "unpacked" not in str(found)]


def test_the_committed_pins_lack_nothing(committed: Layout) -> None:
    assert of_tables(committed) == []


@pytest.mark.parametrize(("table", "key"), NEEDED)
def test_a_table_or_key_that_is_absent_is_named(committed: Layout, table: str, key: str) -> None:
    text = committed.pins.read_text()
    _, heading, rest = text.partition(f"[{table}]\n")
    body = rest.partition("\n[")[0]
    assert heading
    if key:
        gone = next(line for line in body.splitlines() if line.startswith(f"{key} ="))
        committed.pins.write_text(
            text.replace(heading + body, f"{heading}{body}".replace(gone, ""))
        )
    else:
        committed.pins.write_text(text.replace(heading + body, ""))
    at = line_of(committed.pins, table)
    flavor = "cpu" if "cpu" in PINNED[table].flavors and key in ("", "patched") else "sm103"
    what = f"{key} in [{table}]" if key else f"a table [{table}]"
    wanted = f"{what}, which flavor {flavor} needs"
    if key == "device-code" and PINNED[table].compile_for:
        at = line_of(committed.pins, table, "compile-for")
        wanted = "device-code beside it, which names what must come of it"
    assert of_tables(committed) == [
        f"pins.toml:{at}: expected {wanted}, found none; "
        "run `python build.py check` again once pins.toml is corrected"
    ]


def test_a_table_that_leaves_a_flavor_out_is_named(committed: Layout) -> None:
    text = committed.pins.read_text()
    committed.pins.write_text(text.replace('["cpu", "sm103"]', '["cpu"]'))
    valkey = line_of(committed.pins, "valkey", "flavors")
    assert any(
        line.startswith(f"pins.toml:{valkey}: expected 'sm103' in flavors of [valkey]")
        and "found cpu; run" in line
        for line in of_tables(committed)
    )
    assert not [line for line in check(committed, "cpu") if "flavors" in line.expected]


def test_a_project_without_series_is_named(good: Checkout) -> None:
    shutil.rmtree(good.folder)
    assert [line.split("; run")[0] for line in found(good)] == [
        "patches/toy/series:1: expected the order of this project's patches, found no file"
    ]


def test_all_faults_are_told_in_one_run(good: Checkout) -> None:
    good.replace("first.patch", "Origin: headrace", "Origin: me")
    good.replace("first.patch", "::test_toy", "::test_other")
    good.replace("first.patch", " line 19", " line nineteen")
    good.replace("second.patch", "Forwarded: no", "Forwarded: soon")
    (good.folder / "stray.patch").touch()
    good.write(good.layout.sources, {"archives/toy-1.0.tar.gz": b"short"})
    assert [line.split(": expected")[0] for line in found(good)] == [
        "pins.toml:6",
        "patches/toy/stray.patch:1",
        "patches/toy/first.patch:6",
        "patches/toy/second.patch:7",
        "patches/toy/first.patch:11",
        f"patches/toy/first.patch:{good.line_of('first.patch', 'line nineteen')}",
    ]


@pytest.mark.parametrize(
    ("source", "test", "missing"),
    [
        ("async def test_a(): ...", "test_a", ""),
        ("class TestB:\n def test_b(self): ...", "TestB::test_b", ""),
        ("class TestB:\n def test_b(self): ...", "test_b", "no test function test_b in it"),
        ("class TestB:\n def test_b(self): ...", "TestC::test_b", "no class TestC in it"),
        ("test_a = 1", "test_a", "no test function test_a in it"),
        ("def helper():\n def test_a(): ...", "test_a", "no test function test_a in it"),
        ("raise SystemExit", "test_a", "no test function test_a in it"),
        ("def test_a(:", "test_a", "a file that does not parse"),
    ],
)
def test_tests_are_found_without_import(
    good: Checkout, source: str, test: str, missing: str
) -> None:
    good.write(good.layout.root, {"tests/test_toy.py": source.encode()})
    message = message_of("Only", **{"Regression-Test": f"tests/test_toy.py::{test}"})
    good.series((message, {"toy/new.py": text(b"new\n")}))
    said = found(good)
    assert [bool(missing and missing in line) for line in said] == [True] * bool(missing)


def test_many_patches_on_a_large_file_take_seconds(good: Checkout) -> None:
    big = [b"value_%d = %d\n" % (n, n) for n in range(4000)]
    good.write(good.tree, {"toy/big.py": b"".join(big)})
    steps = []
    for number in range(40):
        big[number * 90] = b"value = %d\n" % number
        steps.append((f"Step {number}", {"toy/big.py": text(b"".join(big))}))
    good.series(*steps)
    started = time.monotonic()
    assert found(good) == []
    assert time.monotonic() - started < 10


def test_only_touched_files_are_read(good: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    read = Path.read_bytes

    def record(path: Path) -> bytes:
        if path.is_relative_to(good.tree):
            seen.add(path.relative_to(good.tree).as_posix())
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", record)
    assert found(good) == []
    assert seen == {"toy/numbers.py"}
