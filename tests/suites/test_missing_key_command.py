"""The command's options, its one-line errors and its exit statuses."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import pytest

from headrace.errors import EndpointError, MachineError
from headrace.suites.missing_key import run
from headrace.suites.missing_key.case import Endpoint
from headrace.suites.missing_key.catalogue import groups
from headrace.suites.missing_key.group import NO_LMCACHE
from headrace.suites.missing_key.run import Options, run_suite
from headrace.suites.valkey_server import ValkeyServer
from tests.suites.sites import ROOT, headrace, start


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


@pytest.mark.parametrize(
    "named", ["nowhere", "host:", ":6379", "host:port", "host:0", "host:65536", "host:-1"]
)
def test_a_bad_address_is_refused(named: str, tmp_path: Path) -> None:
    done = headrace("missing-key", "--valkey", named, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert one_line(done.stderr).startswith(f"headrace: --valkey '{named}': expected HOST:PORT")
    assert not (tmp_path / "out").exists()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as vacant:
        vacant.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{vacant.getsockname()[1]}"
        done = headrace("missing-key", "--valkey", where, "--out", tmp_path / "out")
    assert done.returncode == 13
    assert where in one_line(done.stderr)
    assert not (tmp_path / "out").exists()


def test_a_server_that_refuses_names_the_variables_and_not_the_password(tmp_path: Path) -> None:
    with ValkeyServer(password="right") as server:
        done = headrace(
            "missing-key", "--valkey", f"{server.host}:{server.port}", "--out", tmp_path / "out",
            env={"LMCACHE_RESP_PASSWORD": "wrong-secret"},
        )  # fmt: skip
    assert done.returncode == 13
    assert "LMCACHE_RESP_PASSWORD" in one_line(done.stderr)
    assert "wrong-secret" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    "words", [("--patience", "0"), ("--patience", "never"), ("--unknown",), ("extra",)]
)
def test_a_bad_option_is_refused(words: tuple[str, ...]) -> None:
    done = headrace("missing-key", *words)
    assert done.returncode == 2
    assert "Usage" in done.stderr


def test_a_pattern_without_a_case_is_refused(tmp_path: Path) -> None:
    done = headrace("missing-key", "--only", "no/such*", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "no/such*" in one_line(done.stderr)
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = headrace("missing-key", "--only", "missing/99*", "--out", tmp_path / "file" / "out")
    assert done.returncode == 10
    assert str(tmp_path / "file") in one_line(done.stderr)


def test_the_list_names_every_case() -> None:
    done = headrace("missing-key", "--list")
    assert done.returncode == 0
    names = done.stdout.splitlines()
    assert names == [case.name for cases in groups().values() for case in cases]
    assert len(names) == len(set(names)) > 150


def test_without_any_lmcache_it_says_where_there_is_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    # Isolated from what the caller's path may hold.
    done = headrace(
        "missing-key", "--only", "missing/*", "--out", out, env={"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 10
    assert one_line(done.stderr) == f"headrace: {NO_LMCACHE}"
    assert "docker run" in NO_LMCACHE
    assert not (out / "results.jsonl").exists()


def test_with_a_broken_lmcache_it_is_void(tmp_path: Path) -> None:
    broken = tmp_path / "site" / "lmcache"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('built for another Python')\n")
    out = tmp_path / "out"
    done = headrace("missing-key", "--only", "missing/99*", "--out", out, path=tmp_path / "site")
    assert done.returncode == 12
    (line,) = (out / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["verdict"] == "void"
    assert "built for another Python" in json.loads(line)["seen"]
    assert "void: 1 cases" in done.stdout


def test_cases_for_a_private_server_are_void_without_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ValkeyServer() as named:

        def none(*options: str, password: str = "") -> ValkeyServer:
            raise MachineError("expected a valkey-server, found none")

        monkeypatch.setattr(run, "ValkeyServer", none)
        server = Endpoint(named.host, named.port)
        only = ["gone/evicted*", "refused/*", "connection/wrong password"]
        results = run_suite(Options(server, tmp_path, only), lambda result: None)
        assert {result.verdict for result in results} == {"void"}
        assert len(results) == 3
        assert all("found none" in result.seen for result in results)
        with pytest.raises(MachineError, match="--valkey"):
            run_suite(Options(None, tmp_path, only), lambda result: None)


def test_the_named_server_is_greeted_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(EndpointError):
        run_suite(Options(Endpoint("127.0.0.1", 1), tmp_path / "out"), lambda result: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_private_servers(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # Still busy when the signal comes; without any LMCache it would end by itself.
    slow = tmp_path / "site" / "lmcache"
    slow.mkdir(parents=True)
    (slow / "__init__.py").write_text("import time\ntime.sleep(3)\nraise ImportError\n")
    running = start(
        "missing-key", "--out", out, path=tmp_path / "site", env={"TMPDIR": str(scratch)}
    )
    deadline = time.monotonic() + 60
    while not list(out.glob("*.log")):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(scratch.glob("valkey-*")), "the servers' folders should be here while it runs"
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode not in (0, -number)
    assert list(scratch.glob("valkey-*")) == []
    assert not (out / "results.jsonl").exists()
