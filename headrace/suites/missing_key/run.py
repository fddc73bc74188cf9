"""Runs the suite: starts private servers, runs the groups, cleans up, writes the results."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import valkey

from headrace.console import disk_error, say
from headrace.errors import ConfigurationError, EndpointError, MachineError
from headrace.suites.missing_key.case import Case, Endpoint, Surroundings
from headrace.suites.missing_key.catalogue import groups
from headrace.suites.missing_key.control import control
from headrace.suites.missing_key.group import SUITE, Group
from headrace.suites.results import CaseResult, write_results
from headrace.suites.valkey_server import ValkeyServer

# Most cases wait, they do not compute; two importing processes at a time are what two cores bear.
_GROUPS_AT_ONCE = 2

# What is used where the user named no server, and the servers of `Surroundings.private`.
_MAIN = "main"
_PRIVATE: Mapping[str, tuple[str, ...]] = {
    _MAIN: (),
    "plain": (),
    "small": ("--maxmemory", "3mb", "--maxmemory-policy", "noeviction"),
    "evicting": ("--maxmemory", "48mb", "--maxmemory-policy", "allkeys-lru"),
    "locked": (),
}


@dataclass(frozen=True)
class Options:
    """What the user chose.

    Attributes:
        valkey: the server to use for all that is safe on a server of somebody; None for a
            private one.
        folder: gets results.jsonl, junit.xml and a log for each group.
        only: shell patterns of case names; empty for all.
        patience: seconds without a completion after which a command counts as hung.
    """

    valkey: Endpoint | None
    folder: Path
    only: Sequence[str] = ()
    patience: float = 3.0


def run_suite(options: Options, on_result: Callable[[CaseResult], None]) -> list[CaseResult]:
    """Run the chosen cases, write the files, and return the results in catalogue order.

    `on_result` is called for each case as it ends, from one thread at a time.

    Raises:
        ConfigurationError: no case has a name that `only` asks for.
        EndpointError: the named server cannot be reached or refuses; nothing was written to it.
        MachineError: the folder cannot be written, or there is no LMCache.
    """
    chosen = choose(options.only)
    if options.valkey is not None:
        _greet(options.valkey)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        for stale in options.folder.glob("*.log"):
            stale.unlink()
    except OSError as failure:
        raise disk_error(failure, options.folder) from failure
    prefix = f"headrace-{SUITE}-{secrets.token_hex(6)}:"
    with ExitStack() as stack:
        private, why_not = _start_private(stack)
        main = options.valkey or private.get(_MAIN)
        if main is None:
            raise MachineError(f"{why_not}; or name a server with --valkey HOST:PORT")
        around = Surroundings(main, prefix, private, options.patience)
        if options.valkey is not None:
            stack.enter_context(_cleaned_up(options.valkey, prefix))
        results, about = _run_groups(chosen, around, options.folder, on_result, why_not)
    write_results(options.folder, SUITE, results, about)
    return results


def choose(only: Sequence[str]) -> dict[str, tuple[Case, ...]]:
    """Return the groups with the cases whose names match any pattern; all without a pattern.

    Raises:
        ConfigurationError: a pattern matches nothing.
    """
    everything = groups()
    names = [case.name for cases in everything.values() for case in cases]
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigurationError(
                f"--only {pattern!r}: expected a pattern of case names, it matches none of "
                f"{len(names)}; see headrace missing-key --list"
            )
    chosen = {
        group: tuple(
            case
            for case in cases
            if not only or any(fnmatchcase(case.name, pattern) for pattern in only)
        )
        for group, cases in everything.items()
    }
    return {group: cases for group, cases in chosen.items() if cases}


def _run_groups(
    chosen: Mapping[str, tuple[Case, ...]],
    around: Surroundings,
    folder: Path,
    on_result: Callable[[CaseResult], None],
    why_no_private: str,
) -> tuple[list[CaseResult], Mapping[str, str]]:
    lock = threading.Lock()

    def report(result: CaseResult) -> None:
        with lock:
            on_result(result)

    stop = threading.Event()
    runs = {name: Group(name, around, folder / f"{name}.log", report, stop) for name in chosen}
    with ThreadPoolExecutor(_GROUPS_AT_ONCE) as pool:
        try:
            futures = [
                pool.submit(runs[name].run, cases, why_no_private) for name, cases in chosen.items()
            ]
            results = [result for future in futures for result in future.result()]
        except BaseException:
            # The pool waits for its threads: without this an interrupt would run all that is left.
            stop.set()
            raise
    about = {key: value for run in runs.values() for key, value in run.about.items()}
    return results, {**about, "valkey": f"{around.main.host}:{around.main.port}"}


def _greet(server: Endpoint) -> None:
    """Check that the named server answers and may be read.

    Raises:
        EndpointError: it does not.
    """
    where = f"{server.host}:{server.port}"
    try:
        with control(server) as client:
            client.exists("headrace")
    except valkey.exceptions.AuthenticationError as refused:
        raise EndpointError(
            f"{where}: expected to be let in, was refused: {refused}; "
            "set LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD"
        ) from refused
    except (valkey.ValkeyError, OSError) as failure:
        raise EndpointError(
            f"{where}: expected a Valkey that answers, found: {failure}; "
            "check the address, or leave --valkey out for a private server"
        ) from failure


def _start_private(stack: ExitStack) -> tuple[dict[str, Endpoint], str]:
    """Start the private servers; without a server binary return none, and why."""
    servers: dict[str, Endpoint] = {}
    try:
        for name, options in _PRIVATE.items():
            password = secrets.token_hex(8) if name == "locked" else ""
            server = stack.enter_context(ValkeyServer(*options, password=password))
            servers[name] = Endpoint(server.host, server.port, password=password)
    except MachineError as missing:
        return {}, f"needs a private server: {missing}"
    return servers, ""


@contextmanager
def _cleaned_up(server: Endpoint, prefix: str) -> Iterator[None]:
    """Remove every key with our prefix when the block ends, also after an error."""
    try:
        yield
    finally:
        try:
            with control(server) as client:
                for key in client.scan_iter(match=f"{prefix}*", count=1000):
                    client.unlink(key)
        except (valkey.ValkeyError, OSError) as failure:
            say(f"{server.host}:{server.port}: keys {prefix}* may be left: {failure}")
