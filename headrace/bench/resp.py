"""The RESP client, stock against patched: time to a miss, bandwidth, receive calls."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import get_args

from headrace.bench.build import Build, require_lmcache
from headrace.bench.comparison import Bandwidth, Command, Comparison, Miss, Receives
from headrace.bench.plan import BIG, SMALL, Plan
from headrace.bench.statistics import Round, judge, paired_ratio
from headrace.console import call, disk_error
from headrace.errors import MachineError, SuiteVoidError
from headrace.folder import output_folder
from headrace.suites.missing_key.case import Endpoint
from headrace.suites.valkey_server import ValkeyServer

# Each round has new processes, which cost more than the few pairs that they measure.
PAIRS_A_ROUND = 5
# A reply of this size arrives in one piece: the calls that are left are the parser's own.
ONE_PIECE = 4096


def compare(
    stock: Path, patched: Path, plan: Plan, folder: Path, on_step: Callable[[str], None]
) -> Comparison:
    """Measure both builds in turn, write bench.json into `folder`, and return what it says.

    `on_step` is told what is measured next.

    Raises:
        ConfigurationError: a site holds no compiled client.
        MachineError: no server binary, no C compiler, or the folder cannot be written.
        SuiteVoidError: a build failed while it was measured.
    """
    for name, site in (("stock", stock), ("patched", patched)):
        require_lmcache(name, site)
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(output_folder(folder))
        server = stack.enter_context(ValkeyServer())
        where = Endpoint(server.host, server.port)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        builds = _start(stack, stock, patched, folder, None)
        misses = tuple(_misses(builds, where, plan, on_step))
        bandwidths = tuple(_bandwidths(builds, where, plan, on_step))
        on_step("receive calls")
        counted = _start(stack, stock, patched, folder, _counter(scratch))
        receives = tuple(_receives(counted, where, plan))
    result = Comparison(
        str(builds[0].site), str(builds[1].site), plan.judged, plan.floor,
        misses, bandwidths, receives, round(time.monotonic() - began, 1),
    )  # fmt: skip
    try:
        partial = folder / "bench.json.partial"
        partial.write_text(json.dumps({"schema": 1, **asdict(result)}, indent=1) + "\n")
        partial.replace(folder / "bench.json")
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    return result


def _start(
    stack: ExitStack, stock: Path, patched: Path, folder: Path, preload: Path | None
) -> tuple[Build, Build]:
    builds = (
        stack.enter_context(Build("stock", stock, folder / "stock.log", preload)),
        stack.enter_context(Build("patched", patched, folder / "patched.log", preload)),
    )
    for build in builds:
        build.check()
    return builds


def _misses(
    builds: tuple[Build, Build], server: Endpoint, plan: Plan, on_step: Callable[[str], None]
) -> Iterator[Miss]:
    for size in (BIG, SMALL):
        on_step(f"time to a miss, {size} bytes")
        medians = []
        for build in builds:
            tries = []
            for _ in range(plan.misses):
                answer = build.ask("miss", server, size=size, timeout=plan.blocking_seconds)
                if not answer["none"]:
                    raise SuiteVoidError(f"{build.name}: a missing key came back as a chunk")
                tries.append(float(answer["seconds"]))
            medians.append(statistics.median(tries))
        yield Miss(size, medians[0], medians[1], plan.misses)


def _bandwidths(
    builds: tuple[Build, Build], server: Endpoint, plan: Plan, on_step: Callable[[str], None]
) -> Iterator[Bandwidth]:
    for size in plan.counts:
        for threads in plan.threads:
            for command in get_args(Command):
                on_step(f"{command.upper()} of {size} bytes, {threads} threads")
                yield _row(builds, server, command, size, threads, plan)


def _row(
    builds: tuple[Build, Build],
    server: Endpoint,
    command: Command,
    size: int,
    threads: int,
    plan: Plan,
) -> Bandwidth:
    """Measure rounds until the interval decides, between the plan's fewest and most pairs."""
    count = plan.counts[size]
    rounds: list[Round] = []
    cpu: tuple[list[float], list[float]] = ([], [])
    until = time.monotonic() + plan.row_seconds
    while True:
        for build in builds:
            build.ask("open", server, size=size, count=count, threads=threads)
        seconds: tuple[list[float], list[float]] = ([], [])
        for pair in range(PAIRS_A_ROUND):
            # Who goes first changes with every pair, so that neither gains from its place.
            for which in (0, 1) if (len(rounds) + pair) % 2 == 0 else (1, 0):
                answer = builds[which].ask(command)
                seconds[which].append(float(answer["seconds"]))
                cpu[which].append(float(answer["cpu"]))
        for build in builds:
            build.ask("close")
        rounds.append(Round(*seconds))
        interval = paired_ratio(rounds)
        verdict = judge(interval, plan.floor)
        pairs = len(rounds) * PAIRS_A_ROUND
        spent = pairs >= plan.most_pairs or time.monotonic() > until
        if pairs >= plan.pairs and (spent or verdict != "open"):
            break
    moved = size * count / 1e9
    stock = statistics.median(second for one in rounds for second in one.stock)
    patched = statistics.median(second for one in rounds for second in one.patched)
    return Bandwidth(
        command, size, threads, pairs, moved / stock, moved / patched,
        interval.median, interval.low, interval.high, verdict,
        statistics.median(cpu[0]) / moved, statistics.median(cpu[1]) / moved,
    )  # fmt: skip


def _receives(builds: tuple[Build, Build], server: Endpoint, plan: Plan) -> Iterator[Receives]:
    for size, count in {ONE_PIECE: 100, **plan.counts}.items():
        calls = []
        for build in builds:
            build.ask("open", server, size=size, count=count, threads=1)
            answer = build.ask("received")
            if answer["bytes"] < size * count:
                raise SuiteVoidError(
                    f"{build.name}: the counter saw {answer['bytes']} bytes of {size * count}; "
                    "the client receives by a call that is not counted"
                )
            calls.append(answer["calls"] / count)
            build.ask("close")
        yield Receives(size, calls[0], calls[1])


def _counter(folder: Path) -> Path:
    """Compile the receive counter into `folder` and return its path."""
    source = folder / "count_receives.c"
    try:
        source.write_bytes(resources.files(__package__).joinpath(source.name).read_bytes())
    except FileNotFoundError as missing:
        raise MachineError(
            f"{missing.filename}: expected the receive counter's source, found none; "
            "run the bench from a checkout"
        ) from missing
    library = folder / "count_receives.so"
    call(
        ["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"],
        error=MachineError,
        advice="install a C compiler",
    )
    return library
