"""Run one test file of upstream in a process of its own, and say what became of each test.

The installed package is tested, not the source tree: the process works in a copy of upstream's
`tests/` with no `lmcache` beside it, and the plugin in tests/upstream/plugin refuses to go on
unless `lmcache` comes from the site.

The plugin streams events, one JSON line each: `origin` (where `lmcache` comes from), `collect`
(a file that failed or skipped as a whole), `collected` (ids), `start`, `report` and `end` of a
test, `finish` (pytest's status, modules of lmcache from elsewhere).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.console import disk_error
from headrace.errors import VerificationError
from headrace.pipeline.manifest import hash_text

PASSED, FAILED, SKIPPED, ERROR, TIMEOUT = "passed", "failed", "skipped", "error", "timeout"
# What upstream's tests use; whatever else is installed would change them, and takes 1.5 s a file.
PLUGINS = ("pytest_timeout", "pytest_asyncio.plugin", "pytest_benchmark.plugin")
# What pytest returns when it could run the file: all passed, some failed, nothing collected.
ORDERLY = (0, 1, 5)
MARK = "HEADRACE_UPSTREAM"
ABORT_SECONDS = 10.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Limits:
    """Seconds for one test, for one file with its imports, and for a process to end after its
    last test; about three times what the slowest on stock takes on two busy cores."""

    test: float = 120.0
    file: float = 600.0
    exit: float = 30.0


@dataclass(frozen=True)
class Bench:
    """What a file runs against.

    Attributes:
        root: the headrace checkout.
        sources: upstream's unpacked tree, of which only `tests/` and `pytest.ini` are used.
        site: the folder with the installed `lmcache`.
        python: the interpreter; it has LMCache's runtime and test dependencies.
    """

    root: Path
    sources: Path
    site: Path
    python: Path
    limits: Limits = field(default_factory=Limits)

    @property
    def support(self) -> Path:
        return self.root / "tests" / "upstream"

    @property
    def mark(self) -> str:
        """Start of an environment entry that all processes of this checkout's runs have."""
        return f"{MARK}={self.root}:"

    @property
    def scratch(self) -> str:
        """Start of the names of this checkout's folders under the system's temporary folder."""
        return f"hr-{hash_text(str(self.root))[:8]}-"


@dataclass(frozen=True)
class Outcome:
    """`status` is one of the five constants above; `text` is one line that says why."""

    status: str
    text: str = ""


@dataclass(frozen=True)
class FileResult:
    """What became of one file.

    Attributes:
        file: as in "tests/v1/test_config.py".
        origin: the file that `import lmcache` read.
        outcomes: by test id; under the id `file` the outcome of importing the file and of ending
            its process.
    """

    file: str
    origin: str
    seconds: float
    outcomes: dict[str, Outcome]

    @property
    def counts(self) -> dict[str, int]:
        """How many tests ended in which status; the file itself is not counted."""
        statuses = [one.status for test, one in self.outcomes.items() if test != self.file]
        return {status: statuses.count(status) for status in sorted(set(statuses))}


def run_file(
    bench: Bench, file: str, *, log: Path, server: bool = False, ids: Sequence[str] = ()
) -> FileResult:
    """Run `file`, or only its tests `ids`, and return when nothing of it runs any more.

    A file that does not end in time is sent SIGABRT, on which Python prints the stack of every
    thread into `log`, and is then killed with all its children.

    Raises:
        VerificationError: another `lmcache` than the site's was imported.
        MachineError: the disk is full.
    """
    started = time.monotonic()
    # Short, because tests put Unix sockets there, and their paths are limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix=bench.scratch, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        try:
            work = _copy_tests(bench.sources, scratch / "w")
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("wb") as stream:
                process = subprocess.Popen(
                    _command(bench, server, ids or [file]),
                    cwd=work,
                    env=_environment(bench, scratch),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    late = _wait(process, scratch / "events", bench.limits)
                finally:
                    _end_group(process)
                    end_marked(f"{bench.mark}{scratch}")
            events = _read_events(scratch / "events")
        except OSError as failure:
            raise disk_error(failure, log) from failure
    origin = _origin(bench, file, events, log)
    outcomes = _outcomes(file, events, process.returncode, late)
    return FileResult(file, origin, round(time.monotonic() - started, 1), outcomes)


def end_leftovers(bench: Bench) -> None:
    """End what runs of this checkout that were killed have left: processes, then folders."""
    end_marked(bench.mark)
    for folder in Path(tempfile.gettempdir()).glob(f"{bench.scratch}*"):
        shutil.rmtree(folder, ignore_errors=True)


def end_marked(mark: str) -> None:
    """Kill every process whose environment holds an entry that starts with `mark`."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        # Processes of others cannot be read, and any process may end meanwhile.
        with contextlib.suppress(OSError):
            entries = environ.read_bytes().split(b"\0")
            if any(entry.startswith(mark.encode()) for entry in entries):
                os.kill(int(environ.parent.name), signal.SIGKILL)


def _copy_tests(sources: Path, work: Path) -> Path:
    """Copy `tests/` for one process: what a test leaves in the tree cannot reach the next."""
    shutil.copytree(sources / "tests", work / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(sources / "pytest.ini", work)
    return work


def _command(bench: Bench, server: bool, targets: Sequence[str]) -> list[str | Path]:
    return [
        bench.python, "-m", "pytest", *targets,
        *(word for plugin in PLUGINS for word in ("-p", plugin)),
        "-p", "headrace_results", *(["-p", "headrace_server"] if server else []),
        "-p", "no:cacheprovider", "-W", "ignore", "-o", "log_cli=false", "-q", "-ra",
        f"--timeout={bench.limits.test:g}", "--timeout-method=signal",
        # A little earlier than the time-out, so that the stacks are those of the hang.
        "-o", f"faulthandler_timeout={bench.limits.test * 0.9:g}",
    ]  # fmt: skip


def _environment(bench: Bench, scratch: Path) -> dict[str, str]:
    """Return the whole environment: what the user has set must not change what is measured."""
    inherited = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
    home, temporary = scratch / "h", scratch / "t"
    home.mkdir()
    temporary.mkdir()
    path = [str(bench.support / "bin"), str(bench.python.parent), os.environ.get("PATH", "")]
    return {
        **{name: os.environ[name] for name in inherited if name in os.environ},
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join([str(bench.site), str(bench.support / "plugin")]),
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "HEADRACE_ROOT": str(bench.root),
        "HEADRACE_SITE": str(bench.site),
        "HEADRACE_EVENTS": str(scratch / "events"),
        MARK: f"{bench.root}:{scratch}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        # Stacks on SIGABRT also before pytest's own handler is in place and after it is gone.
        "PYTHONFAULTHANDLER": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "HF_HUB_OFFLINE": "1",
    }


def _wait(process: subprocess.Popen[bytes], events: Path, limits: Limits) -> bool:
    """Wait for the process to end; if it is late, make it print its stacks, and return True."""
    deadline = time.monotonic() + limits.file
    finishing = False
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ABORT_SECONDS)
            return True
        if not finishing and _finished(events):
            finishing = True
            deadline = min(deadline, time.monotonic() + limits.exit)
        time.sleep(POLL_SECONDS)
    return False


def _finished(events: Path) -> bool:
    try:
        with events.open("rb") as stream:
            stream.seek(max(0, events.stat().st_size - 4096))
            return b'{"event": "finish"' in stream.read()
    except FileNotFoundError:
        return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the session that the process led, also when the process itself is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_events(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        # The last line is cut when the process was killed while it wrote it.
        with contextlib.suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events


def _origin(bench: Bench, file: str, events: Iterable[Mapping[str, Any]], log: Path) -> str:
    origins = [event["file"] for event in events if event["event"] == "origin"]
    foreign = [path for event in events if event["event"] == "finish" for path in event["foreign"]]
    if not origins:
        raise VerificationError(
            f"{file}: expected `import lmcache` from {bench.site}, found that it never got so far; "
            f"see {log}"
        )
    for path in (Path(name).resolve() for name in (*origins, *foreign)):
        if not path.is_relative_to(bench.site.resolve()):
            raise VerificationError(
                f"{file}: expected lmcache from {bench.site}, found {path}; "
                f"take it out of the environment of {bench.python}"
            )
    return str(origins[0])


def _outcomes(
    file: str, events: Iterable[Mapping[str, Any]], status: int, late: bool
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    own, running, finished = Outcome(PASSED), "", False
    for event in events:
        match event["event"]:
            case "collect":
                failed = event["outcome"] == FAILED
                own = Outcome(ERROR if failed else SKIPPED, event["text"])
            case "start":
                running = event["id"]
            case "report":
                known = outcomes.get(event["id"])
                outcomes[event["id"]] = _merge(known, _of_report(event))
            case "end":
                running = ""
            case "finish":
                finished = True
    if late:
        own = Outcome(TIMEOUT, "hung after its last test" if finished else f"hung in {running}")
    elif own.status == PASSED and (not finished or status not in ORDERLY):
        where = "after its last test" if finished else f"in {running or 'its imports'}"
        own = Outcome(ERROR, f"ended with status {status} {where}")
    if running:
        outcomes[running] = Outcome(own.status, own.text)
    return {**outcomes, file: own}


def _of_report(event: Mapping[str, Any]) -> Outcome:
    if event["outcome"] == FAILED:
        if "Timeout (>" in event["text"] and "pytest-timeout" in event["text"]:
            return Outcome(TIMEOUT, event["text"])
        return Outcome(FAILED if event["when"] == "call" else ERROR, event["text"])
    return Outcome(event["outcome"], event["text"])


def _merge(known: Outcome | None, new: Outcome) -> Outcome:
    """Of a test's set-up, call and clean-up the first that did not pass counts, except that a
    clean-up that fails outweighs a skip."""
    if known is None or known.status == PASSED:
        return new
    return new if known.status == SKIPPED and new.status not in (PASSED, SKIPPED) else known
