"""Results that are given to `verify`: of this image, whole, consistent, or they prove nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigurationError, PublishError, VerificationError
from headrace.pipeline import proofs_sm103, verify
from headrace.pipeline.checks import GIVEN
from headrace.pipeline.given import refuse_given, take
from headrace.pipeline.given_needle import FILES, judge
from headrace.pipeline.layout import Layout
from headrace.pipeline.report import (
    load_report,
    refuse_unless_publishable,
    report_path,
    save_report,
)
from headrace.pipeline.subject import Subject, UnprovedError
from headrace.suites.needle.report import write_report
from headrace.suites.valkey_server import ValkeyServer
from tests.pipeline.test_report import report
from tests.suites.needle.conftest import Stand

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32
Files = dict[str, bytes]
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def written(servers: list[ValkeyServer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole green run with a brief prompt, as the suite writes it."""
    stand = Stand(servers, tmp_path_factory.mktemp("given"))
    outcome = stand.run(image=f"r.example/headrace@{DIGEST}", seams=True, brief=(1500,))
    write_report(outcome)
    return outcome.options.out


@pytest.fixture
def files(written: Path) -> Files:
    return {name: (written / name).read_bytes() for name in FILES}


def edit(files: Files, change: Callable[[Lines, Lines], object]) -> Files:
    """Return the files with what `change` did to the lines of cells.jsonl and results.jsonl."""
    names = ("cells.jsonl", "results.jsonl")
    cells, results = ([json.loads(line) for line in files[name].splitlines()] for name in names)
    change(cells, results)
    text = ["".join(json.dumps(line) + "\n" for line in lines) for lines in (cells, results)]
    return {**files, names[0]: text[0].encode(), names[1]: text[1].encode()}


def without(key: str, *values: str) -> Callable[[Lines, Lines], object]:
    """Return a change that leaves out cells, and their cases."""

    def leave_out(cells: Lines, results: Lines) -> None:
        gone = {cell["cell"] for cell in cells if cell[key] in values}
        assert gone
        cells[:] = [cell for cell in cells if cell["cell"] not in gone]
        results[:] = [case for case in results if case["case"] not in gone]

    return leave_out


def with_verdict(verdict: str, *, cell_too: bool = True) -> Callable[[Lines, Lines], object]:
    def change(cells: Lines, results: Lines) -> None:
        (case,) = [case for case in results if case["case"] == "rank-1/L2"]
        (cell,) = [cell for cell in cells if cell["cell"] == "rank-1/L2"]
        case["verdict"] = verdict
        if cell_too:
            cell.update(verdict=verdict, why=["it says why"])

    return change


def on_all(**changes: Any) -> Callable[[Lines, Lines], object]:
    return lambda cells, results: [cell.update(changes) for cell in cells]


def of_run(**changes: Any) -> Callable[[Lines, Lines], object]:
    return lambda cells, results: [cell["run"].update(changes) for cell in cells]


def test_a_whole_green_run_of_this_image_is_green_and_says_whose_it_is(files: Files) -> None:
    verdict, detail, cases = judge(files, DIGEST)
    assert verdict == "green"
    assert {case.verdict for case in cases} == {"green"}
    assert {"border/L2", "rank-2/control", "1500-brief/L2", "distance/L1"} <= {
        case.case for case in cases
    }
    assert detail.startswith("given results, a record and no signature: ")
    assert " prompts of http://127.0.0.1:" in detail
    assert judge(edit(files, on_all(image=DIGEST)), DIGEST)[0] == "green"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (on_all(image=f"r.example/headrace@{OTHER}"), f"expected image {DIGEST}, found r.example"),
        (on_all(image=f"{DIGEST}0"), "expected image"),
        (on_all(image=""), "found none"),
        (lambda cells, results: cells[-1].update(image=OTHER), "expected image"),
        (without("state", "cold"), "expected a cell for state cold"),
        (without("state", "L1"), "expected a cell for state L1"),
        (without("state", "L2"), "expected a cell for state L2"),
        (without("state", "control"), "expected a cell for state control"),
        (without("prompt", "rank-1"), "found no prompt rank-1"),
        (without("prompt", "border"), "found no prompt border"),
        (without("prompt", "1000-at-80"), r"a whole run of \d+ prompts, found \d+"),
        (lambda cells, results: [cell.update(needle_ranks=[0]) for cell in cells],
         "expected a needle on rank 1 in L2"),
        (of_run(ranks=1), "expected shards of two ranks or more"),
        (of_run(ranks=4), "found no prompt"),
        (of_run(ranks=10**9, prompts=10**9), "less than or equal to 4096"),
        (of_run(chunk=0), "greater than or equal to 1"),
        (of_run(private=True), "found one with --private"),
        (of_run(prompts=1), "a whole run of 1 prompts"),
        (lambda cells, results: cells[3]["run"].update(endpoint="http://x"), "found several"),
        (lambda cells, results: cells[3].pop("run"), "found line 4: 1 validation error"),
        (lambda cells, results: cells.clear(), "expected the cells of a run, found none"),
        (lambda cells, results: cells.append(cells[0]), "expected each case once"),
        (lambda cells, results: results.append(results[0]), "expected each case once"),
        (lambda cells, results: results.pop(0), r"found none in results\.jsonl"),
        (lambda cells, results: results.append({**results[0], "case": "run/interrupted"}),
         "run/interrupted: expected .* beside the cells, found it"),
        (lambda cells, results: results.pop(), "beside the cells, found none"),
        (lambda cells, results: results[0].pop("verdict"), r"results\.jsonl: expected cases"),
        (with_verdict("red", cell_too=False), "rank-1/L2: expected green"),
        (with_verdict("green"), "fits its verdict"),
        (lambda cells, results: cells[0].update(found="wrong"), "fits its verdict"),
        (lambda cells, results: cells[0].update(state="L2"), "fits its verdict and name"),
    ],
)  # fmt: skip
def test_what_is_not_a_whole_run_of_this_image_proves_nothing(
    files: Files, change: Callable[[Lines, Lines], object], message: str
) -> None:
    with pytest.raises(UnprovedError, match=message) as refused:
        judge(edit(files, change), DIGEST)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["cells.jsonl", "results.jsonl"])
@pytest.mark.parametrize(
    "data", [b"{", b"[]\n", b"\xff\n", b"null\n", b"[" * 100_000, rb'{"case": "\ud800"}']
)
def test_a_broken_file_proves_nothing(files: Files, name: str, data: bytes) -> None:
    with pytest.raises(UnprovedError, match=rf"{name}: expected"):
        judge({**files, name: data}, DIGEST)


def test_a_red_case_is_red_also_where_others_are_missing(files: Files) -> None:
    assert judge(edit(files, with_verdict("red")), DIGEST)[0] == "red"
    both = edit(edit(files, with_verdict("red")), without("state", "control"))
    assert judge(both, DIGEST)[0] == "red"


def test_a_void_case_is_void(files: Files) -> None:
    assert judge(edit(files, with_verdict("void")), DIGEST)[0] == "void"


def test_what_was_judged_is_kept_also_from_the_folder_that_keeps_it(
    written: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "report" / "needle"
    assert take(written, kept, DIGEST)[0] == "green"
    (kept / "junk").touch()
    assert take(kept, kept, DIGEST)[0] == "green"
    assert {path.name for path in kept.iterdir()} == set(FILES)
    assert [path.name for path in kept.parent.iterdir()] == ["needle"]


def test_what_proves_nothing_is_not_kept_and_says_what_to_run(
    written: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "report" / "needle"
    with pytest.raises(UnprovedError, match=f"--image IMAGE@{OTHER} --out FOLDER'$") as refused:
        take(written, kept, OTHER)
    assert str(refused.value).startswith(f"{written}: ")
    with pytest.raises(UnprovedError, match=r"results\.jsonl: expected a file .*No such file"):
        take(tmp_path, kept, DIGEST)
    assert not kept.exists()


def test_a_refusal_quotes_nothing_that_a_terminal_obeys(
    written: Path, files: Files, tmp_path: Path
) -> None:
    for name, data in edit(files, on_all(image="\x1b[2J\na")).items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UnprovedError, match=r"found \\x1b\[2J\\na; run") as refused:
        take(tmp_path, tmp_path / "kept", DIGEST)
    assert str(refused.value).isprintable()


# It clears the screen, ends the line, writes another verdict backwards, and makes letters bold.
HOSTILE = "a\x1b[2J\r\ngreen suite [bold]\u202e:cat:"
SHOWN = r"a\x1b[2J\r\ngreen suite [bold]\u202e:cat:"


def hostile(cells: Lines, results: Lines) -> None:
    """Name a prompt of the plan, the model and the endpoint so, and turn its L2 red."""
    for cell in cells:
        cell["model"] = cell["run"]["endpoint"] = HOSTILE
        if cell["prompt"] == "1000-at-80":
            (case,) = [case for case in results if case["case"] == cell["cell"]]
            cell["prompt"] = HOSTILE
            cell["cell"] = case["case"] = f"{HOSTILE}/{cell['state']}"
            if cell["state"] == "L2":
                cell.update(verdict="red", why=["wrong"])
                case.update(verdict="red", expected=HOSTILE, seen=HOSTILE)


def test_given_names_reach_neither_terminal_nor_text_as_they_are(
    files: Files, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given, layout = tmp_path / "given", Layout(tmp_path)
    given.mkdir()
    for name, data in edit(files, hostile).items():
        (given / name).write_bytes(data)
    subject = Subject(layout, "sm103", DIGEST, given, "headrace:1", "1", "b" * 40, "a" * 64)
    suites = verify.run_suites(subject, {"needle": proofs_sm103.needle}, {"needle": given})[:1]
    whole = report(flavor="sm103", image=DIGEST, suites=suites, verdict=suites[0].verdict)
    path = save_report(layout, whole)
    with pytest.raises(VerificationError) as red:
        verify.require_green(layout, whole)
    with pytest.raises(PublishError) as refused:
        refuse_unless_publishable(load_report(path), DIGEST)
    text = path.with_suffix(".txt").read_text()
    said = [
        str(red.value),
        str(refused.value),
        *text.split("\n"),
        *capfd.readouterr().err.split("\n"),
    ]
    assert not [line for line in said if not line.isprintable()]
    assert not [line for line in said if line.startswith("green suite [bold]")]
    assert SHOWN in text and SHOWN in str(red.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.jsonl")
    with pytest.raises(UnprovedError, match=r"results\.jsonl: expected a file .*another kind of"):
        take(tmp_path, tmp_path / "kept", DIGEST)


def test_what_no_run_writes_is_not_read_into_memory(tmp_path: Path) -> None:
    with (tmp_path / "results.jsonl").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(
        UnprovedError, match=r"results\.jsonl: expected .*found 1099511627776 bytes"
    ):
        take(tmp_path, tmp_path / "kept", DIGEST)


def test_verify_judges_what_is_given_and_is_void_without(written: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    subject = Subject(layout, "sm103", DIGEST, tmp_path, "headrace:1", "1", "b" * 40, "a" * 64)
    suites = {"needle": proofs_sm103.needle}
    (needle, _) = verify.run_suites(subject, suites, {"needle": written})
    assert (needle.name, needle.verdict) == ("needle", "green")
    assert len(needle.cases) > 50
    page = report_path(layout, DIGEST).with_suffix("") / "needle" / "report.html"
    assert page.read_bytes() == (written / "report.html").read_bytes()
    (needle, _) = verify.run_suites(subject, suites)
    assert (needle.verdict, needle.cases) == ("void", ())
    assert f"--image IMAGE@{DIGEST} --out FOLDER', then" in needle.detail
    assert needle.detail.endswith("'build.py verify' with --needle-results FOLDER")


def test_what_cannot_be_given_is_refused_before_the_checks(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"for flavor cpu, .*'verify' runs that suite"):
        verify.prove(Layout(tmp_path), "cpu", {"needle": tmp_path})
    with pytest.raises(ConfigurationError, match="expected a folder, found none"):
        refuse_given("sm103", {"needle": tmp_path / "none"}, GIVEN["sm103"])
    refuse_given("sm103", {"needle": tmp_path}, GIVEN["sm103"])
