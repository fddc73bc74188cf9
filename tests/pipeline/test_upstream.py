"""The runner of upstream's tests, on a small upstream of our own: every way a file can end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import filelock
import pytest

from headrace.errors import (
    ConfigurationError,
    MachineError,
    SuiteFailedError,
    VerificationError,
)
from headrace.pipeline.layout import Layout
from headrace.pipeline.upstream import record_baseline, run_upstream
from headrace.pipeline.upstream_baseline import (
    Baseline,
    Regression,
    changes,
    compare,
    format_baseline,
    merge_runs,
    read_baseline,
    read_touched,
)
from headrace.pipeline.upstream_report import UpstreamReport
from headrace.pipeline.upstream_run import Bench, FileResult, Limits, Outcome, run_file

CHECKOUT = Path(__file__).resolve().parents[2]
SUPPORT = CHECKOUT / "tests" / "upstream"
PINS = """
[lmcache]
version = "0.5.5"
kind = "pypi sdist"
file = "lmcache-0.5.5.tar.gz"
license = "Apache-2.0"
flavors = ["cpu"]
patched = true
"""
# Short enough to wait for, long enough for a busy machine to import pytest.
LIMITS = Limits(test=2.0, file=60.0, exit=60.0)
PASSING = """
    def test_one():
        import lmcache
        assert lmcache.VALUE == 1
    """
TWO = "tests/v1/test_two.py"
ONE = "tests/v1/test_one.py"


class Checkout:
    """A headrace checkout whose upstream has the test files that a test writes."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.sources = root / "build" / "sources" / "lmcache-0.5.5"
        self.site = root / "build" / "site"
        self.support = root / "tests" / "upstream"
        (self.sources / "tests" / "v1").mkdir(parents=True)
        for package in ("tests", "tests/v1"):
            (self.sources / package / "__init__.py").touch()
        (self.sources / "pytest.ini").write_text("[pytest]\nlog_cli = true\n")
        (self.sources / "lmcache").mkdir()
        (self.sources / "lmcache" / "__init__.py").write_text("VALUE = 'the source tree'\n")
        (self.site / "lmcache").mkdir(parents=True)
        (self.site / "lmcache" / "__init__.py").write_text("VALUE = 1\n")
        for part in ("plugin", "bin"):
            shutil.copytree(SUPPORT / part, self.support / part)
        (root / "headrace").symlink_to(CHECKOUT / "headrace")
        (root / "pins.toml").write_text(PINS)

    @property
    def bench(self) -> Bench:
        return Bench(self.layout.root, self.sources, self.site, Path(sys.executable), LIMITS)

    def write(self, file: str, text: str) -> None:
        (self.sources / file).write_text(textwrap.dedent(text))

    def configure(
        self, outcomes: Mapping[str, Mapping[str, str]], flaky: Mapping[str, str] | None = None
    ) -> None:
        """Write touched.toml and a baseline that knows `outcomes`, file → id → status."""
        lines = [
            f"cpu = {json.dumps(sorted(outcomes))}",
            "server = []",
            "[flaky]",
            *(f"{json.dumps(test)} = {json.dumps(why)}" for test, why in (flaky or {}).items()),
            "[[group]]",
            'sources = ["csrc/*"]',
            f"tests = {json.dumps([min(outcomes)])}",
        ]
        (self.support / "touched.toml").write_text("\n".join(lines))
        text = format_baseline(Baseline("0.5.5", outcomes, {}))
        (self.support / "baseline-lmcache-0.5.5.json").write_text(text)

    def run(self) -> UpstreamReport:
        return run_upstream(self.layout, scope="all", site=self.site, limits=LIMITS)

    def start(self) -> subprocess.Popen[bytes]:
        """Run in a process of its own, one file at a time, without limits that matter."""
        program = f"""
from pathlib import Path
from headrace.pipeline.layout import Layout
from headrace.pipeline.upstream import Limits, run_upstream
layout, site = Layout(Path({str(self.layout.root)!r})), Path({str(self.site)!r})
run_upstream(layout, scope="all", site=site, jobs=1, limits=Limits(test=999, file=999))
"""
        return subprocess.Popen([sys.executable, "-c", program], cwd=CHECKOUT)

    def running(self) -> list[int]:
        """Return the processes that a run of this checkout started and that still live."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"HEADRACE_UPSTREAM={self.layout.root}:".encode() in environ.read_bytes():
                    found.append(int(environ.parent.name))
        return found


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    assert made.running() == []
    assert list(Path(tempfile.gettempdir()).glob(f"{made.bench.scratch}*")) == []


@pytest.mark.parametrize(
    ("text", "own", "tests"),
    [
        pytest.param(PASSING, "passed", {"one": "passed"}, id="passing"),
        pytest.param(
            """
            import pytest
            def test_one(): assert 1 == 2
            @pytest.fixture
            def broken(): raise ValueError("set-up")
            def test_two(broken): pass
            @pytest.fixture
            def untidy():
                yield
                raise ValueError("clean-up")
            def test_three(untidy): pass
            @pytest.mark.parametrize("n", [1, 2])
            def test_four(n): pytest.skip("not here")
            @pytest.mark.xfail
            def test_five(): assert 1 == 2
            """,
            "passed",
            {
                "one": "failed",
                "two": "error",
                "three": "error",
                "four[1]": "skipped",
                "four[2]": "skipped",
                "five": "passed",
            },
            id="every outcome",
        ),
        pytest.param(
            """
            import time
            def test_one(): time.sleep(50)
            def test_two(): pass
            """,
            "passed",
            {"one": "timeout", "two": "passed"},
            id="slow test",
        ),
        pytest.param(
            """
            import os
            def test_one(): pass
            def test_two(): os._exit(0)
            def test_three(): pass
            """,
            "error",
            {"one": "passed", "two": "error"},
            id="crash",
        ),
        pytest.param("import no_such_module\ndef test_one(): pass", "error", {}, id="import error"),
        pytest.param(
            "import pytest\npytest.skip('no GPU', allow_module_level=True)",
            "skipped",
            {},
            id="skip",
        ),
        pytest.param("", "passed", {}, id="nothing collected"),
    ],
)
def test_every_way_a_file_ends(
    checkout: Checkout, text: str, own: str, tests: dict[str, str]
) -> None:
    checkout.write(ONE, text)

    result = run_file(checkout.bench, ONE, log=checkout.layout.build / "one.log")

    expected = {f"{ONE}::test_{name}": status for name, status in tests.items()} | {ONE: own}
    assert {test: outcome.status for test, outcome in result.outcomes.items()} == expected
    assert result.origin == str(checkout.site / "lmcache" / "__init__.py")


def test_reasons_are_one_line(checkout: Checkout) -> None:
    checkout.write(ONE, "def test_one():\n    raise ValueError('first\\nsecond')")
    result = run_file(checkout.bench, ONE, log=checkout.layout.build / "one.log")
    assert result.outcomes[f"{ONE}::test_one"].text == "ValueError: first"


def test_a_hung_file_prints_its_stacks_and_leaves_nothing(checkout: Checkout) -> None:
    checkout.write(
        ONE,
        """
        import signal, subprocess, time
        def test_one(): pass
        def test_deaf():
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            while True: time.sleep(1)
        """,
    )
    bench = Bench(
        checkout.layout.root, checkout.sources, checkout.site, Path(sys.executable),
        Limits(test=1.0, file=10.0, exit=10.0),
    )  # fmt: skip
    log = checkout.layout.build / "one.log"

    result = run_file(bench, ONE, log=log)

    assert result.outcomes[f"{ONE}::test_one"].status == "passed"
    assert result.outcomes[f"{ONE}::test_deaf"] == Outcome("timeout", f"hung in {ONE}::test_deaf")
    assert result.outcomes[ONE].status == "timeout"
    stacks = log.read_text().partition("Fatal Python error: Aborted")[2]
    assert "in test_deaf" in stacks
    assert checkout.running() == []


def test_a_file_that_hangs_after_its_tests_is_found_early(checkout: Checkout) -> None:
    checkout.write(
        ONE,
        """
        import threading, time
        def test_one(): threading.Thread(target=time.sleep, args=[1000]).start()
        """,
    )
    bench = Bench(
        checkout.layout.root, checkout.sources, checkout.site, Path(sys.executable),
        Limits(test=60.0, file=600.0, exit=1.0),
    )  # fmt: skip

    result = run_file(bench, ONE, log=checkout.layout.build / "one.log")

    assert result.outcomes[f"{ONE}::test_one"].status == "passed"
    assert result.outcomes[ONE] == Outcome("timeout", "hung after its last test")
    assert result.seconds < 60


def test_settings_of_the_user_do_not_reach_the_tests(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMCACHE_CHUNK_SIZE", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    checkout.write(
        ONE, "import os\ndef test_one(): assert not [n for n in os.environ if 'CHUNK' in n]"
    )
    result = run_file(checkout.bench, ONE, log=checkout.layout.build / "one.log")
    assert result.counts == {"passed": 1}


def test_a_server_and_a_redis_cli_where_they_are_wanted(checkout: Checkout) -> None:
    checkout.write(
        ONE,
        """
        import os, subprocess
        HOST, PORT = os.environ.get("REDIS_HOST", "none"), os.environ.get("REDIS_PORT", "0")
        def call(*words):
            command = ["redis-cli", "-h", HOST, "-p", PORT, *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=10)
        def test_one():
            assert call("ping").stdout == "PONG\\n"
            assert call("SET", "key", "a b").stdout == "OK\\n"
            assert call("DBSIZE").stdout == "1\\n"
            assert call("FLUSHDB").stdout == "OK\\n"
            assert call("DBSIZE").stdout == "0\\n"
            assert call("NONSENSE").returncode == 1
        def test_no_server():
            assert call("ping").returncode == 1
        """,
    )
    log = checkout.layout.build / "one.log"
    wanted, unwanted = f"{ONE}::test_one", f"{ONE}::test_no_server"

    with_server = run_file(checkout.bench, ONE, log=log, server=True).outcomes
    without = run_file(checkout.bench, ONE, log=log).outcomes

    assert (with_server[wanted].status, with_server[unwanted].status) == ("passed", "failed")
    assert (without[wanted].status, without[unwanted].status) == ("failed", "passed")


def test_another_lmcache_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (checkout.site / "lmcache").rename(elsewhere)
    (checkout.site / "lmcache").symlink_to(elsewhere)
    checkout.write(ONE, PASSING)
    with pytest.raises(VerificationError, match=r"expected lmcache from .*site, found .*elsewhere"):
        run_file(checkout.bench, ONE, log=checkout.layout.build / "one.log")


def test_a_module_of_another_lmcache_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "extra.py").write_text("")
    checkout.write(
        ONE,
        f"""
        import importlib.util, sys
        def test_one():
            path = {str(tmp_path / "extra.py")!r}
            spec = importlib.util.spec_from_file_location("lmcache.extra", path)
            sys.modules["lmcache.extra"] = importlib.util.module_from_spec(spec)
        """,
    )
    with pytest.raises(VerificationError, match=r"found .*extra\.py"):
        run_file(checkout.bench, ONE, log=checkout.layout.build / "one.log")


def test_an_lmcache_that_cannot_be_imported_stops_the_run(checkout: Checkout) -> None:
    (checkout.site / "lmcache" / "__init__.py").write_text("syntax error\n")
    checkout.write(ONE, PASSING)
    with pytest.raises(VerificationError, match=r"never got so far; see .*one\.log"):
        run_file(checkout.bench, ONE, log=checkout.layout.build / "one.log")


def test_regressions_are_repeated_reported_and_not_kept(checkout: Checkout, tmp_path: Path) -> None:
    counter, flag = tmp_path / "counter", tmp_path / "flag"
    checkout.write(
        ONE,
        f"""
        import pathlib
        def test_good(): pass
        def test_bad():
            with pathlib.Path({str(counter)!r}).open("a") as stream: stream.write("x")
            assert 1 == 2
        def test_flaky():
            flag = pathlib.Path({str(flag)!r})
            known = flag.exists()
            flag.touch()
            assert known
        def test_new_pass(): pass
        """,
    )
    checkout.write(TWO, PASSING)
    names = {"good": "passed", "bad": "passed", "flaky": "passed", "new_pass": "failed"}
    first = {f"{ONE}::test_{name}": status for name, status in names.items()}
    checkout.configure(
        {ONE: {ONE: "passed", **first}, TWO: {TWO: "passed", f"{TWO}::test_one": "passed"}}
    )

    report = checkout.run()

    bad = Regression(f"{ONE}::test_bad", "passed", "failed", "assert 1 == 2")
    assert report.regressions == [bad]
    assert counter.read_text() == "xx"
    written = json.loads(report.path.read_text())
    assert written["verdict"] == "red"
    assert list(written["flaky"]) == [f"{ONE}::test_flaky"]
    assert written["changes"] == {f"{ONE}::test_new_pass": "failed → passed"}
    assert written["lmcache"] == [str(checkout.site / "lmcache" / "__init__.py")]
    with pytest.raises(SuiteFailedError, match=r"test_bad: expected 'passed' as on stock"):
        report.require_green()

    again = checkout.run()
    assert [one.stored for one in again.files] == [False, True]
    assert counter.read_text() == "xxxx"

    (checkout.site / "lmcache" / "__init__.py").write_text("VALUE = 2\n")
    other = checkout.run()
    assert [one.stored for one in other.files] == [False, False]
    assert {r.id for r in other.regressions} == {bad.id, f"{TWO}::test_one"}


def test_a_test_that_vanished_is_a_regression(checkout: Checkout) -> None:
    checkout.write(ONE, PASSING)
    gone = f"{ONE}::test_gone"
    checkout.configure({ONE: {ONE: "passed", gone: "passed"}})
    assert checkout.run().regressions == [Regression(gone, "passed", "missing", "not collected")]


def test_a_killed_run_leaves_nothing_and_goes_on(checkout: Checkout, tmp_path: Path) -> None:
    entered = tmp_path / "entered"
    checkout.write(ONE, PASSING)
    checkout.write(
        TWO,
        f"""
        import pathlib, time
        def test_one():
            known = pathlib.Path({str(entered)!r}).exists()
            pathlib.Path({str(entered)!r}).touch()
            if not known: time.sleep(1000)
        """,
    )
    checkout.configure(
        {file: {file: "passed", f"{file}::test_one": "passed"} for file in (ONE, TWO)}
    )
    runner = checkout.start()
    _until(entered.exists)
    assert checkout.running() != []
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    _until(lambda: checkout.running() == [])

    report = checkout.run()

    assert report.regressions == []
    assert [one.stored for one in report.files] == [True, False]
    assert all(one.stored for one in checkout.run().files)


def test_an_interrupted_run_ends_its_processes(checkout: Checkout, tmp_path: Path) -> None:
    entered = tmp_path / "entered"
    sleeper = f"""
        import pathlib, time
        def test_one():
            pathlib.Path({str(entered)!r}).touch()
            time.sleep(1000)
        """
    checkout.write(ONE, sleeper)
    checkout.configure({ONE: {ONE: "passed"}})
    runner = checkout.start()
    _until(entered.exists)
    runner.send_signal(signal.SIGINT)
    assert runner.wait(30) != 0
    assert checkout.running() == []


def test_two_runs_at_once_are_refused(checkout: Checkout) -> None:
    checkout.write(ONE, PASSING)
    checkout.configure({ONE: {ONE: "passed"}})
    folder = checkout.layout.build / "upstream"
    folder.mkdir(parents=True)
    with (
        filelock.FileLock(folder / ".lock"),
        pytest.raises(MachineError, match="another run of upstream's tests"),
    ):
        checkout.run()


def test_a_baseline_is_recorded_with_its_flaky_tests(checkout: Checkout, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    checkout.write(ONE, PASSING)
    checkout.write(
        TWO,
        f"""
        import pathlib
        def test_second_time():
            with pathlib.Path({str(counter)!r}).open("a+") as stream:
                stream.write("x")
                assert stream.tell() == 2
        def test_bad(): assert 1 == 2
        """,
    )
    steady = f"{ONE}::test_one"
    checkout.configure({ONE: {}, TWO: {}}, flaky={steady: "slow timer"})

    path = record_baseline(checkout.layout, site=checkout.site, limits=LIMITS)

    baseline = read_baseline(path)
    assert baseline.files == {
        ONE: {ONE: "passed", steady: "flaky"},
        TWO: {TWO: "passed", f"{TWO}::test_bad": "failed", f"{TWO}::test_second_time": "flaky"},
    }
    test = f"{TWO}::test_second_time"
    assert baseline.flaky == {
        test: "failed, passed, failed: AssertionError: assert 1 == 2",
        steady: "slow timer",
    }
    # It fails again and again, so the run on the site says so, although stock is not steady.
    assert [one.id for one in checkout.run().regressions] == [test]
    assert counter.read_text() == "xxx" + "x" + "xxx"


def _result(**statuses: str) -> FileResult:
    outcomes = {f"{ONE}::test_{name}": Outcome(status, "why") for name, status in statuses.items()}
    return FileResult(ONE, "", 0.0, {**outcomes, ONE: Outcome("passed")})


def test_compare_calls_a_regression_what_passed_and_does_not() -> None:
    on_stock = dict.fromkeys(("a", "b", "c", "d", "e", "f"), "passed")
    known = {f"{ONE}::test_{name}": status for name, status in on_stock.items()}
    known |= {ONE: "passed", f"{ONE}::test_g": "flaky", f"{ONE}::test_h": "failed"}
    known |= {f"{ONE}::test_i": "skipped"}
    baseline = Baseline("0.5.5", {ONE: known}, {f"{ONE}::test_g": "passed, failed: why"})
    result = _result(
        a="passed", b="failed", c="error", d="timeout", e="skipped", g="failed", h="passed",
        i="failed", j="failed",
    )  # fmt: skip

    found = compare(baseline, result)

    seen = {one.id.rpartition("_")[2]: (one.expected, one.seen) for one in found}
    assert seen == {
        "b": ("passed", "failed"),
        "c": ("passed", "error"),
        "d": ("passed", "timeout"),
        "e": ("passed", "skipped"),
        "f": ("passed", "missing"),
        "g": ("flaky", "failed"),
    }
    assert changes(baseline, result) == {
        f"{ONE}::test_h": "failed → passed",
        f"{ONE}::test_i": "skipped → failed",
        f"{ONE}::test_j": "missing → failed",
    }


def test_compare_refuses_a_file_it_does_not_know() -> None:
    with pytest.raises(ConfigurationError, match="expected an entry in the baseline"):
        compare(Baseline("0.5.5", {}, {}), _result())


def test_a_flaky_test_that_upstream_does_not_have_is_named() -> None:
    with pytest.raises(ConfigurationError, match="test_gone: expected this flaky test"):
        merge_runs("0.5.5", [_result(a="passed")], {f"{ONE}::test_gone": "slow timer"})


def test_a_baseline_is_one_line_a_test_and_reads_back(tmp_path: Path) -> None:
    baseline = merge_runs("0.5.5", [_result(a="passed", b="skipped"), _result(a="passed")])
    assert baseline.flaky == {f"{ONE}::test_b": "skipped, missing"}
    text = format_baseline(baseline)
    assert '   "::test_a": "passed",\n' in text
    path = tmp_path / "baseline.json"
    path.write_text(text)
    assert read_baseline(path) == baseline


@pytest.mark.parametrize("text", [None, "{", "[]", '{"files": {}}'])
def test_a_broken_baseline_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "baseline.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"baseline\.json: expected"):
        read_baseline(path)


def test_touched_runs_the_tests_of_the_changed_sources(checkout: Checkout) -> None:
    checkout.write(ONE, PASSING)
    checkout.write(TWO, PASSING)
    checkout.configure(
        {file: {file: "passed", f"{file}::test_one": "passed"} for file in (ONE, TWO)}
    )
    record = checkout.layout.patched / "lmcache-0.5.5.json"
    record.parent.mkdir()

    def run() -> UpstreamReport:
        return run_upstream(checkout.layout, scope="touched", site=checkout.site, limits=LIMITS)

    with pytest.raises(ConfigurationError, match=r"lmcache-0\.5\.5\.json: expected the record"):
        run()
    record.write_text(json.dumps({"files": {"csrc/redis/connector.cpp": "0" * 64}}))
    assert [one.result.file for one in run().files] == [ONE]
    record.write_text(json.dumps({"files": {"csrc/a.h": "", "lmcache/config.py": ""}}))
    with pytest.raises(ConfigurationError, match=r"pattern that covers lmcache/config\.py"):
        run()
    record.write_text(json.dumps({"files": {}}))
    with pytest.raises(ConfigurationError, match="no test would run"):
        run()
    (checkout.sources / ONE).unlink()
    with pytest.raises(ConfigurationError, match=r"expected tests/v1/test_one\.py in"):
        run()


def test_the_committed_baseline_and_mapping_agree() -> None:
    touched = read_touched(SUPPORT / "touched.toml")
    [path] = SUPPORT.glob("baseline-*.json")
    baseline = read_baseline(path)
    assert list(baseline.files) == sorted(touched.cpu)
    assert touched.server <= set(touched.cpu)
    assert {test for _, tests in touched.groups for test in tests} <= set(touched.cpu)
    for file in touched.server:
        # Skipped means that no server was there, and then these tests prove nothing.
        assert set(baseline.files[file].values()) == {"passed"}
    flaky = {t for tests in baseline.files.values() for t, s in tests.items() if s == "flaky"}
    assert flaky == set(baseline.flaky)


def _until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
