"""`headrace needle` as a process: exit codes, and one line for each bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.errors import ConfigurationError, EndpointError
from headrace.suites.needle.client import Endpoint
from headrace.suites.needle.options import Options
from headrace.suites.needle.restart import restart
from tests.suites.needle.conftest import CHUNK, RANKS, Stand
from tests.suites.needle.fake_engine import Behaviour, FakeEngine

NOWHERE = "http://127.0.0.1:9"
LOGIN = "set LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD"


@contextmanager
def _engine(stand: Stand, **does: Any) -> Iterator[FakeEngine]:
    clients = [server.client() for server in stand.servers]
    for client in clients:
        client.flushall()
    with FakeEngine(clients, Behaviour(chunk=CHUNK, **does)) as engine:
        yield engine


def test_green_ends_with_0_and_asks_again_by_its_own_command(stand: Stand) -> None:
    """The command in the report, run as it stands, is green as well."""
    with _engine(stand) as engine:
        ran = _needle(stand, engine.url)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        told = ran.stdout.splitlines()[-1]
        assert told.startswith("green: 4 of 4 answers hold the right code; seed 3; see ")
        line = (stand.folder / "out" / "cells.jsonl").read_text().splitlines()[0]
        found = re.search(r'"again": "headrace (.*?)"[,}]', line)
        assert found
        words = found[1].encode().decode("unicode_escape")
        again = subprocess.run(
            ["/bin/sh", "-c", f"{sys.executable} -m headrace.cli {words} --out {stand.folder}/b"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert again.returncode == 0, again.stdout + again.stderr
        assert engine.requests[1]["prompt"] == engine.requests[-1]["prompt"]


def test_red_ends_with_11_and_void_with_12(stand: Stand) -> None:
    with _engine(stand, change=lambda answer, source: " 7654321.") as engine:
        assert _needle(stand, engine.url).returncode == 11
    with _engine(stand, connector=False) as engine:
        ran = _needle(stand, engine.url)
    assert ran.returncode == 12
    assert ran.stderr.splitlines()[-1].startswith("headrace: needle: 2 of 11 cases void; see ")


BAD: list[tuple[int, str, dict[str, Any], Callable[[Stand], list[str]]]] = [
    (13, "http://127.0.0.1:9: expected an endpoint that answers", {}, lambda stand: ["url"]),
    (2, "'127.0.0.1:8000': expected http://HOST:PORT, found no http:// before it; write http:", {},
     lambda stand: ["bare"]),
    (15, "expected to serve 'gpt', found 'fake'; name one with --model", {},
     lambda stand: ["--model", "gpt"]),
    (16, "1000-at-40: expected at most 868 tokens beside an answer of 32", {"limit": 900},
     lambda stand: []),
    (17, "start vllm serve with --enable-prompt-tokens-details", {"reports_cached": False},
     lambda stand: []),
    (18, "--valkey 127.0.0.1:9 (shard 2): expected a Valkey that answers", {},
     lambda stand: ["last"]),
    (2, "expected one server, or one for each of 3 ranks, found 2", {}, lambda stand: ["two"]),
    (2, "--lengths '1,x': expected numbers from 1", {}, lambda stand: ["--lengths", "1,x"]),
    (2, "--lengths ',': expected numbers from 1", {}, lambda stand: ["--lengths", ","]),
    (2, "--patience inf: expected seconds from 1 to 86400", {},
     lambda stand: ["--patience", "inf"]),
    (2, "--patience 0.5: expected seconds from 1", {}, lambda stand: ["--patience", "0.5"]),
    (2, "--settle 1e+300: expected seconds from 0", {}, lambda stand: ["--settle", "1e300"]),
    (2, "--settle nan: expected seconds from 0", {}, lambda stand: ["--settle", "nan"]),
    (2, "--fault 'x': expected one of delete-keys", {}, lambda stand: ["--fault", "x"]),
    (2, "--tag 'a@b': expected at most 64", {}, lambda stand: ["--tag", "a@b"]),
    (2, "there is no terminal to ask at; give a shell command", {},
     lambda stand: ["--restart", "ask"]),
    (2, "--restart: expected how to restart the engine, found nothing", {},
     lambda stand: ["--restart", " "]),
    (2, "--restart kubectl:: expected kubectl:[NAMESPACE/]DEPLOYMENT", {},
     lambda stand: ["--restart", "kubectl:"]),
    (2, "--restart kubectl:vllm/: expected kubectl:[NAMESPACE/]DEPLOYMENT", {},
     lambda stand: ["--restart", "kubectl:vllm/"]),
    (10, "couldn't find 'kubectl' in PATH", {}, lambda stand: ["--restart", "kubectl:vllm/p"]),
    (2, "--engine-log /none: expected the engine's log file", {},
     lambda stand: ["--engine-log", "/none"]),
    (2, "--only 'x*': expected a pattern of prompt names", {},
     lambda stand: ["url", "--only", "x*"]),
    (2, "--haystack /none: expected a text file in UTF-8", {},
     lambda stand: ["url", "--haystack", "/none"]),
    (2, "30-at-40: no room for a needle", {}, lambda stand: ["url", "--lengths", "30"]),
    (13, "/v1/models: expected a count as max_model_len, found \"abc\"; name an", {"limit": "abc"},
     lambda stand: []),
    (13, "/v1/completions: expected a string as text, found null; ", {"says": {"text": None}},
     lambda stand: []),
    (13, "expected a count as cached_tokens, found \"7\"", {"says": {"cached_tokens": "7"}},
     lambda stand: []),
    (13, "expected a count as prompt_tokens, found -1", {"says": {"prompt_tokens": -1}},
     lambda stand: []),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "does", "words"), BAD, ids=[each[1][:30] for each in BAD])
def test_bad_input_is_one_line_with_its_own_code(
    stand: Stand,
    code: int,
    line: str,
    does: dict[str, Any],
    words: Callable[[Stand], list[str]],
) -> None:
    with _engine(stand, **does) as engine:
        chosen = words(stand)
        if chosen[:1] == ["url"]:
            ran = _needle(stand, NOWHERE, *chosen[1:])
        elif chosen == ["bare"]:
            ran = _needle(stand, "127.0.0.1:8000")
        elif chosen in (["last"], ["two"]):
            servers = [f"127.0.0.1:{server.port}" for server in stand.servers[:2]]
            servers += ["127.0.0.1:9"] if chosen == ["last"] else []
            ran = _needle(stand, engine.url, servers=servers)
        else:
            ran = _needle(stand, engine.url, *chosen)
    assert ran.returncode == code, ran.stderr
    told = [each for each in ran.stderr.splitlines() if each.startswith("headrace: ")]
    assert len(told) == 1, ran.stderr
    assert line in told[0]
    assert "Traceback" not in ran.stderr
    assert not (stand.folder / "out").exists(), "no empty folder is left"


def test_another_scheme_is_replaced_and_not_put_behind_http() -> None:
    with pytest.raises(ConfigurationError, match=r"found ftp:// before it; write http://x$"):
        Options("ftp://x")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("needle", NOWHERE, "--valkey", "me:hunter2@127.0.0.1:1"), LOGIN),
        (("needle", NOWHERE, "--valkey", "resp://:hunter2@h-{rank}:1"), LOGIN),
        (("missing-key", "--valkey", "me:hunter2@127.0.0.1:1"), LOGIN),
        (("needle", "http://me:hunter2@127.0.0.1:9"), "URL: expected http://HOST:PORT"),
        (("needle", "http://127.0.0.1:9/?key=hunter2"), "URL: expected http://HOST:PORT"),
    ],
)
def test_a_login_in_an_address_is_refused_and_not_repeated(
    words: tuple[str, ...], line: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.cli", *words],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ran.returncode == 2
    assert line in ran.stderr
    assert "hunter2" not in ran.stdout + ran.stderr


def test_a_failing_restart_keeps_what_was_found(stand: Stand) -> None:
    with _engine(stand) as engine:
        ran = _needle(stand, engine.url, "--restart", "exit 3")
    assert ran.returncode == 12, ran.stderr
    assert "expected status 0, found 3; try it in a shell, and correct --restart" in ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("void: 2 of 2 answers hold the right code")
    out = stand.folder / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "cells.jsonl", "junit.xml", "report.html", "results.jsonl"
    ]  # fmt: skip
    results = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    told = {each["case"]: each for each in results}
    assert told["run/interrupted"]["verdict"] == "void"
    assert "found 3" in told["run/interrupted"]["seen"]
    assert "The run was interrupted before" in (out / "report.html").read_text()


def test_a_user_who_declines_the_restart_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No abort of the whole command, but what a failing restart is."""
    monkeypatch.setattr(typer, "confirm", lambda text, **rest: False)
    with Endpoint(NOWHERE, "", 5) as endpoint, pytest.raises(EndpointError, match="found a no"):
        restart("ask", endpoint)


def test_list_prints_the_plan() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "needle", NOWHERE, "--list", "--seed", "1"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    names = ran.stdout.split()
    assert len(names) == 21
    assert names[6:12] == [f"{n}-at-50" for n in (255, 256, 257, 2047, 2048, 2049)]


def _needle(
    stand: Stand, url: str, *words: str, servers: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    addresses = servers or [f"127.0.0.1:{server.port}" for server in stand.servers]
    restart = f"{sys.executable} {_restarter(stand.folder)} {url}"
    return subprocess.run(
        [
            sys.executable, "-m", "headrace.cli", "needle", url, "--seed", "3", "--no-seams",
            "--lengths", "1000", "--depths", "40", "--ranks", str(RANKS),
            "--chunk-size", str(CHUNK), "--restart", restart, "--engine-log", str(stand.log),
            "--out", str(stand.folder / "out"), "--settle", "2",
            *(word for address in addresses for word in ("--valkey", address)), *words,
        ],
        capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": str(stand.folder)},
    )  # fmt: skip


def _restarter(folder: Path) -> Path:
    script = folder / "restart.py"
    script.write_text(
        "import sys, urllib.request as r\n"
        "r.urlopen(r.Request(sys.argv[1] + '/restart', data=b'')).read()\n"
    )
    return script
