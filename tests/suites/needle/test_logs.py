"""The engine's log: what was there before does not count, and a restart may begin it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.suites.needle.logs import LogWatch

TIMEOUT = "Request 7 is still waiting for async lookup after 3 seconds\n"
ERROR = "ERROR 11-30 09:00:00 [core.py:1] broken\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("ERROR 11-30 of before\n")
    return path


def test_only_what_is_new_counts(log: Path) -> None:
    watch = _watch(log)
    _write(log, TIMEOUT)
    watch.read()
    watch.read()
    assert _counts(watch) == {"async time-outs": 1}


def test_a_file_begun_anew_is_read_from_its_start(log: Path) -> None:
    watch = _watch(log)
    log.write_text(ERROR[:12] + "\n")
    watch.read()
    assert _counts(watch) == {"errors": 1}
    log.unlink()
    watch.read()
    log.write_text(TIMEOUT + "and much more than there was before\n" * 9)
    watch.read()
    assert _counts(watch) == {"errors": 1, "async time-outs": 1}


def test_what_a_restart_says_is_passed_over(log: Path) -> None:
    watch = _watch(log)
    _write(log, ERROR)
    watch.skip()
    _write(log, TIMEOUT)
    watch.read()
    assert _counts(watch) == {"async time-outs": 1}


def test_after_a_fault_arm_only_double_frees_count(log: Path) -> None:
    watch = _watch(log)
    _write(log, TIMEOUT + ERROR + "Pin count is negative: -1.Double unpin occurred somewhere.\n")
    watch.only = ("double frees",)
    watch.read()
    assert _counts(watch) == {"double frees": 1}


def test_a_failed_load_is_counted_once_its_line_is_whole(log: Path) -> None:
    """As vLLM words it, whether it computes the tokens anew or gives the request up."""
    watch = _watch(log)
    _write(log, "WARNING Recovered from KV load failure: 1 request(s) resched")
    watch.read()
    assert _counts(watch) == {}
    _write(log, "uled (512 tokens affected).\n")
    watch.read()
    _write(
        log,
        "ERROR Failing 1 request(s) due to KV load failure (failure_policy=fail, 256 tokens "
        "affected). Request IDs: {'a'}\n",
    )
    watch.read()
    assert (_counts(watch), watch.computed_anew) == ({"failed loads": 2}, 768)
    watch.only = ()
    _write(log, "WARNING Recovered from KV load failure: 1 request(s) rescheduled (1 tokens affe")
    _write(log, "cted).\n")
    watch.read()
    assert (_counts(watch), watch.computed_anew) == ({"failed loads": 2}, 769)


@pytest.mark.parametrize(
    "line",
    [
        "INFO no error was found",
        "Lookup of 7 tokens took 3 ms, timeout_ms=3000 INFO",
        "LMCache INFO: lookup_timeout_ms: 3000",
        "(EngineCore pid=1) INFO 11-30 09:00 errors=0",
    ],
)
def test_ordinary_lines_are_no_faults(log: Path, line: str) -> None:
    watch = _watch(log)
    _write(log, line + "\n")
    watch.read()
    assert _counts(watch) == {}


def _watch(log: Path) -> LogWatch:
    watch = LogWatch([log])
    watch.begin()
    return watch


def _write(log: Path, text: str) -> None:
    with log.open("a") as stream:
        stream.write(text)


def _counts(watch: LogWatch) -> dict[str, int]:
    return {name: len(lines) for name, lines in watch.found.items() if lines}
