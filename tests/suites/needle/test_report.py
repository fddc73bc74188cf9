"""The files: a line for each cell with its evidence, JUnit, and a page that needs nothing else."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from headrace.suites.needle.options import Options
from headrace.suites.needle.page import headline, heatmap, of_state
from headrace.suites.needle.report import write_report
from headrace.suites.needle.run import Outcome
from tests.suites.needle.conftest import CHUNK, Stand
from tests.suites.needle.fake_engine import Behaviour


@pytest.fixture
def broken(stand: Stand) -> Outcome:
    """A run with one shard pointed at another's server, written to disk."""
    outcome = stand.run(
        Behaviour(server_of=lambda rank: 0 if rank == 1 else rank),
        image="sha256:" + "ab" * 32, depths=(), lengths=(1000, 1500), seams=True,
    )  # fmt: skip
    write_report(outcome)
    return outcome


def test_a_line_for_each_cell_with_evidence_and_the_command_to_ask_again(broken: Outcome) -> None:
    out = broken.options.out
    lines = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    assert [line["cell"] for line in lines] == [cell.name for cell in broken.cells]
    line = next(line for line in lines if line["cell"] == "rank-1/L2")
    assert line["verdict"] == "void"
    assert line["ranks"] == [0, 1]
    assert line["image"] == "sha256:" + "ab" * 32
    assert line["seed"] == broken.options.seed
    assert line["evidence"]["gets"] == [4, 0, 2]
    assert line["evidence"]["cached"] == 6 * CHUNK
    words = shlex.split(line["again"])
    assert words[:3] == ["headrace", "needle", broken.options.endpoint]
    assert words[words.index("--only") + 1] == "rank-1"
    prompts = {line["prompt"] for line in lines}
    assert [line["run"] for line in lines] == [
        {"endpoint": broken.options.endpoint, "private": False, "ranks": 3, "chunk": CHUNK,
         "prompts": len(prompts)}
    ] * len(lines)  # fmt: skip


def test_a_run_of_some_prompts_says_how_many_there_are(stand: Stand) -> None:
    outcome = stand.run(only=("1000-at-20",))
    write_report(outcome)
    line = (outcome.options.out / "cells.jsonl").read_text().splitlines()[0]
    assert {cell.prompt.name for cell in outcome.cells} == {"1000-at-20"}
    assert json.loads(line)["run"]["prompts"] == 2


def test_the_command_of_a_private_run_asks_in_the_same_way() -> None:
    options = Options("", private=True, ranks=2, sync_loading=True, faults=("evict",), seed=3)
    words = options.again("fault-evict").split()
    assert words[:3] == ["headrace", "needle", "--private"]
    assert "--sync-loading" in words
    assert words[words.index("--fault") + 1] == "evict"
    assert not {"--valkey", "--restart", "--dialect", "--tag"} & set(words)


def test_junit_counts_void_as_error(broken: Outcome) -> None:
    suite = ET.parse(broken.options.out / "junit.xml").getroot()
    voids = sum(result.verdict == "void" for result in broken.results)
    assert voids
    assert (suite.get("errors"), suite.get("failures")) == (str(voids), "0")
    assert suite.get("tests") == str(len(broken.results))


def test_the_page_says_the_verdict_first_and_names_the_rank(broken: Outcome) -> None:
    page = (broken.options.out / "report.html").read_text()
    first = re.search(r"<body>\s*<h1>(.*?)</h1>", page)
    assert first
    assert first[1] == headline(broken)
    assert first[1].startswith("void: ")
    assert "to blame: rank 0, 1" in first[1]
    assert 'class="word red">differs' in page


def test_the_page_needs_nothing_else(broken: Outcome) -> None:
    """No script, no font, no picture from elsewhere; only the endpoint's own address."""
    page = (broken.options.out / "report.html").read_text()
    assert not re.search(r"<script|<link|<img|src=|@import|url\(", page)
    hosts = set(re.findall(r"https?://[^\s<&\"'/,]+", page))
    assert hosts == {broken.options.endpoint}, "the endpoint's own address, as text"
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_the_page_escapes_what_a_model_says(stand: Stand) -> None:
    outcome = stand.run(Behaviour(change=lambda answer, source: "<script>alert(1)</script>"))
    write_report(outcome)
    page = (outcome.options.out / "report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_each_cell_has_its_field_in_the_heatmap(broken: Outcome) -> None:
    cells = of_state(broken.cells, "L2")
    lengths = [*sorted({cell.prompt.length for cell in cells}), 9999]
    rows = heatmap(cells, lengths)
    assert [band for band, _ in rows] == list(range(0, 100, 10))
    for cell in cells:
        squares = rows[min(cell.prompt.depth, 99) // 10][1]
        square = squares[lengths.index(cell.prompt.length)]
        assert cell.name in square.title
        assert square.verdict in (cell.verdict, "void")
        assert square.mark[0] == ("✓" if square.verdict == "green" else "?")
    assert all(row[1][-1].verdict is None for row in rows), "no prompt has this length"


def test_a_folder_that_cannot_be_written_is_one_line(stand: Stand, tmp_path: Path) -> None:
    from headrace.errors import MachineError

    (tmp_path / "file").write_text("")
    outcome = stand.run(out=tmp_path / "file")
    with pytest.raises(MachineError, match=r"File exists|Not a directory"):
        write_report(outcome)
