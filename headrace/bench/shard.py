"""The sharded store, stock against patched: what the most loaded rank stores, what a load takes."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

from headrace.bench.build import require_lmcache
from headrace.bench.shard_plan import ShardPlan
from headrace.bench.shard_result import Place, ShardComparison, ShardRow, Timing
from headrace.bench.statistics import Round, paired_ratio
from headrace.console import disk_error
from headrace.errors import SuiteVoidError
from headrace.folder import output_folder
from headrace.suites.ranks.failures import RanksHungError
from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.template import Template
from headrace.suites.ranks.wire import Answer

# The release loses completions, and then a lookup or a load never returns: that pair is repeated.
_COMMAND_SECONDS = 20.0
_HANGS = 20


class _Build:
    """One build's replica.

    Attributes:
        hangs: how many pairs were repeated because it did not return.
    """

    def __init__(self, name: str, pool: RankPool, shards: Shards, settings: Settings) -> None:
        self.name = name
        self.pool = pool
        self.shards = shards
        self.settings = settings
        self.hangs = 0

    def open(self, place: Place) -> None:
        """Start with new engines on empty servers, with L1 or without."""
        self.settings = replace(self.settings, local_cpu=place == "L1")
        self.shards.flush()
        self.pool.restart(self.settings)

    def measure(self, labels: list[int], place: Place) -> tuple[float, int, float]:
        """Return seconds and bytes of the most loaded rank in a store, and seconds of a load.

        Raises:
            SuiteVoidError: a rank loaded something else than the prompt, or hangs too often.
        """
        while True:
            try:
                return self._measure(labels, place)
            except RanksHungError as hung:
                self.hangs += 1
                if self.hangs > _HANGS:
                    raise SuiteVoidError(f"{self.name}: {hung}, {_HANGS} times") from hung
                self.open(place)

    def _measure(self, labels: list[int], place: Place) -> tuple[float, int, float]:
        request = f"request-{labels[0]}"
        self.shards.flush()
        if place == "L2":
            self.pool.each("poison")
        stored = self.pool.each("store", labels=labels, together=True)
        most = max(self.shards.bytes_held())
        self.pool.each("lookup", labels=labels, request=request)
        loads = self.pool.each("load", labels=labels, request=request, together=True)
        self.pool.each("release", request=request)
        for rank, load in enumerate(loads):
            self._check(rank, load, len(labels))
        return (
            max(answer["put_seconds"] for answer in stored),
            most,
            max(load["seconds"] for load in loads),
        )

    def _check(self, rank: int, load: Answer, chunks: int) -> None:
        wanted = chunks * self.settings.chunk_size
        if load["tokens"] != wanted or load["wrong"] or load["strayed"]:
            raise SuiteVoidError(
                f"{self.name}: expected rank {rank} to load {wanted} tokens, it loaded "
                f"{load['tokens']}, with wrong bytes in {len(load['wrong'])} chunks"
            )


def compare_shards(
    stock: Path, patched: Path, plan: ShardPlan, folder: Path, on_step: Callable[[str], None]
) -> ShardComparison:
    """Measure both builds in turn, write bench-shard.json into `folder`, and return what it says.

    `on_step` is told what is measured next.

    Raises:
        ConfigurationError: a folder holds no compiled lmcache.
        MachineError: no server binary, or the folder cannot be written.
        SuiteVoidError: a build failed while it was measured.
    """
    for name, site in (("stock", stock), ("patched", patched)):
        require_lmcache(name, site)
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(output_folder(folder))
        builds = [
            stack.enter_context(_build(name, site, plan, folder))
            for name, site in (("stock", stock), ("patched", patched))
        ]
        labels = itertools.count(1)
        rows = [_row(builds, place, plan, labels, on_step) for place in get_args(Place)]
    result = ShardComparison(
        str(stock), str(patched), plan.world, plan.chunks,
        builds[0].settings.shape.chunk_bytes, plan.pairs, builds[0].hangs, builds[1].hangs,
        tuple(rows), round(time.monotonic() - began, 1),
    )  # fmt: skip
    try:
        partial = folder / "bench-shard.json.partial"
        partial.write_text(json.dumps({"schema": 1, **asdict(result)}, indent=1) + "\n")
        partial.replace(folder / "bench-shard.json")
    except OSError as failure:
        raise disk_error(failure, folder) from failure
    return result


@contextmanager
def _build(name: str, site: Path, plan: ShardPlan, folder: Path) -> Iterator[_Build]:
    logs = folder / name
    logs.mkdir(exist_ok=True)
    with (
        Template(logs / "import.log", site.resolve()) as template,
        Shards(plan.world) as shards,
        RankPool(template, logs, plan.world, patience=_COMMAND_SECONDS, show_stacks=False) as pool,
    ):
        yield _Build(name, pool, shards, plan.settings(shards.url))


def _row(
    builds: Sequence[_Build],
    place: Place,
    plan: ShardPlan,
    labels: Iterator[int],
    on_step: Callable[[str], None],
) -> ShardRow:
    """Measure the plan's pairs, both builds of a pair one after the other."""
    for build in builds:
        build.open(place)
    stores, loads, most = [], [], [0, 0]
    for pair in range(plan.pairs):
        on_step(f"{place}, pair {pair + 1} of {plan.pairs}")
        store, load = [0.0, 0.0], [0.0, 0.0]
        # Who goes first changes with every pair, so that neither gains from its place.
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            prompt = list(itertools.islice(labels, plan.chunks))
            store[which], stored, load[which] = builds[which].measure(prompt, place)
            most[which] = max(most[which], stored)
        stores.append(Round(store[:1], store[1:]))
        loads.append(Round(load[:1], load[1:]))
    return ShardRow(place, most[0], most[1], _timing(stores), _timing(loads))


def _timing(rounds: Sequence[Round]) -> Timing:
    interval = paired_ratio(rounds)
    return Timing(
        statistics.median(one.stock[0] for one in rounds),
        statistics.median(one.patched[0] for one in rounds),
        interval.median,
        interval.low,
        interval.high,
    )
