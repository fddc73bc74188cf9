"""The release runbook says nothing that does not exist: commands, options, ids of tests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from headrace.commands import app as headrace
from headrace.pipeline.cli import app as build
from tests.suites.sites import ROOT

RUNBOOK = (ROOT / "ci/RELEASE.md").read_text()
ID = re.compile(r"tests/moe/test_\w+\.py::test_\w+(\[\w+(-\w+)+\])?")
# Of the click that typer brings along: what it says of words that it cannot take.
UsageError: Any = typer.BadParameter.__base__
MAKE = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def command_lines(text: str) -> Iterator[list[str]]:
    """Return the words of each line of the fenced blocks of a page."""
    for block in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield shlex.split(line, comments=True)


def problem(words: list[str]) -> str:
    """Return what is wrong with a command of this checkout, or with a run of upstream's tests."""
    match words:
        case [".venv/bin/python", "build.py", *rest]:
            return _unparsed(get_command(build), rest)
        case ["headrace", *rest]:
            return _unparsed(get_command(headrace), rest)
        case ["make", *rest]:
            return "" if set(rest) <= MAKE else f"make: no target {rest}"
        case ["run", *rest]:
            named = [word for word in rest if re.fullmatch(r"@ids|tests/moe/test_\w+\.py", word)]
            return "" if named else "run: no test of upstream's"
    return f"no command {words}"


def _unparsed(command: Any, words: list[str]) -> str:
    """Return why a command of typer cannot take the words, which are not run."""
    while hasattr(command, "commands"):
        name, *words = words
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
    try:
        command.make_context(command.name, words)
    except UsageError as refused:
        return str(refused)
    return ""


OURS = (".venv/bin/python", "headrace", "make", "run")
LINES = [words for words in command_lines(RUNBOOK) if words and words[0] in OURS]


@pytest.mark.parametrize("words", LINES, ids=lambda words: " ".join(words)[:60])
def test_each_command_can_be_given(words: list[str]) -> None:
    assert not problem(words)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (".venv/bin/python build.py wheel", "no command wheel"),
        (".venv/bin/python build.py wheels --mode aot", "No such option: --mode"),
        (".venv/bin/python build.py wheels --module both", "'both' is not one of"),
        (".venv/bin/python build.py publish sm103", "Missing parameter: to"),
        ("headrace bench kernels", "no command kernels"),
        (".venv/bin/python build.py verify sm103 --needle-result x", "No such option"),
        ("headrace needle --shards a:1", "No such option: --shards"),
        ("make compile_gate", "no target"),
        ("run moe/test_x.py", "no test of upstream's"),
        (".venv/bin/python built.py", "no command"),
    ],
)
def test_a_command_that_cannot_be_given_is_told(line: str, said: str) -> None:
    assert said in problem(shlex.split(line))


def test_the_runbook_names_every_step_in_its_order() -> None:
    """An image that was not proved is not published, and not proved before its engine was asked."""
    text = [" ".join(words) for words in LINES]
    steps = (
        "build.py lock", "wheels --flavor sm103 --module aot", "image --flavor sm103",
        "verify sm103", "run @ids", "headrace bench kernel", "headrace needle http",
        "verify sm103 --needle-results", "publish sm103 --to",
    )  # fmt: skip
    places = [next(n for n, line in enumerate(text) if step in line) for step in steps]
    assert places == sorted(places)
    assert places[-1] == len(text) - 1


def test_the_ids_of_upstreams_tests_are_ids() -> None:
    # As the runbook's own command collects them.
    ids = re.findall(r"^tests/.*", RUNBOOK, re.MULTILINE)
    assert len(ids) == len(set(ids)) == 11
    assert [each for each in ids if not ID.fullmatch(each)] == []
    remote = [each for each in ids if re.search(r"-(32|64|128)-True\]$", each)]
    assert len(remote) == 3, "three of them have experts on other ranks"
