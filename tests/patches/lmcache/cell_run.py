"""Runs one cell of the table of faults × moments, and says what is wrong with what it came to."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.suites.ranks.failures import RanksHungError
from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.wire import Answer
from tests.patches.lmcache.rank_pool import is_sharded
from tests.patches.lmcache.sharded_cells import (
    FATAL,
    MOMENTS,
    Cell,
    allowed,
    chunks_of,
    promised,
)

TABLE = Path(__file__).parent / "stock_table.json"

# The faulty rank: not the one that does everything on the release. There it must be that one.
RANK = 1
DEADLINE = 12.0
# What the release may take for one command; it has no time-out of its own in most of them.
STOCK_DEADLINE = 5.0
EVICTING = ("--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru")

Replica = tuple[RankPool, Shards, Settings]


def cell_settings(shards: Shards) -> Settings:
    """Return what the engines of all cells are opened with: every time-out is short."""
    return Settings(
        url=shards.url,
        blocking_seconds=1,
        # The release's own way of loading needs it: under prefill context parallelism its ranks
        # 1 and above load nothing at all, and could not hang.
        broadcast="tp",
        extra={"resp_socket_timeout_ms": 500, "pcp_shard_timeout_secs": 4},
    )


@dataclass
class Seen:
    """What a cell came to; chunks, not tokens.

    Attributes:
        promised: what the scheduler made of the lookups; None if a rank's raised.
        loads: every rank's answer to the load.
        seconds: of the load.
        hung: the command that did not return, and the ranks in which it did not.
        present: how many chunks in a row the servers have after the load.
        after: what was wrong with the request after it, "" if nothing was.
    """

    promised: int | None = None
    loads: list[Answer] = field(default_factory=list)
    seconds: float = 0.0
    hung: str = ""
    present: int = 0
    after: str = ""


_labels = itertools.count(1)


def some_labels(count: int) -> list[int]:
    """Return labels that no cell before had, so that engines and servers may be used again."""
    return list(itertools.islice(_labels, count))


def run_cell(
    pool: RankPool, shards: Shards, settings: Settings, cell: Cell, rank: int, seconds: float
) -> Seen:
    """Run one cell; engines are open, and go on to be used unless something hung.

    Args:
        rank: where the fault is.
        seconds: until when every command must have returned.
    """
    seen = Seen()
    try:
        with _recovered(pool, shards, rank, seconds):
            _run(pool, shards, cell, rank, seconds, seen, settings.chunk_size)
    except RanksHungError as hung:
        seen.hung = str(hung)
        return seen
    if cell.expected != FATAL:
        try:
            seen.after = _request_after(pool, settings, seconds)
        except RanksHungError as hung:
            seen.after = str(hung)
    return seen


def _run(
    pool: RankPool,
    shards: Shards,
    cell: Cell,
    rank: int,
    seconds: float,
    seen: Seen,
    chunk_size: int,
) -> None:
    labels, request = some_labels(chunks_of(pool.world)), f"request-{next(_labels)}"
    _store(pool, labels, seconds)
    server = shards.servers[rank]
    names = pool.ask(0, "names", labels=labels)["names"]
    about = {
        "name": names[pool.world + rank],
        "port": server.port,
        "pid": server.pid,
        "labels": labels,
        "request": request,
    }
    # A rank that takes another prompt for this one.
    other = [*labels[:-1], next(_labels)]
    confused = cell.fault == "fingerprint differs"
    mine = [
        {"labels": other if confused and each == rank else labels} for each in range(pool.world)
    ]

    if cell.moment == "before the lookup" and not confused:
        if cell.fault == "exception":
            pool.ask(rank, "plant", moment="lookup", fault=cell.fault, **about)
        else:
            pool.ask(rank, "act", fault=cell.fault, seconds=seconds, **about)
    asked = mine if cell.moment == "before the lookup" else [{"labels": labels}] * pool.world
    answers = pool.each("lookup", per_rank=asked, request=request, seconds=seconds, may_raise=True)
    if not any("raised" in answer for answer in answers):
        tokens = [answer["tokens"] for answer in answers if answer["tokens"] is not None]
        seen.promised = min(tokens) // chunk_size

    if cell.moment == "between lookup and load" and not confused:
        if cell.fault == "exception":
            pool.ask(rank, "plant", moment="tokens", fault=cell.fault, **about)
        else:
            pool.ask(rank, "act", fault=cell.fault, seconds=seconds, **about)
    if cell.moment in MOMENTS[2:]:
        pool.ask(rank, "plant", moment=cell.moment, fault=cell.fault, **about)
    loaded = mine if cell.moment in MOMENTS[:2] else [{"labels": labels}] * pool.world
    began = time.monotonic()
    try:
        seen.loads = pool.each(
            "load", per_rank=loaded, request=request, seconds=seconds, may_raise=True
        )
        if cell.fault == "same request twice":
            seen.loads = pool.each("load", labels=labels, request=request, seconds=seconds)
    finally:
        seen.seconds = time.monotonic() - began
    if cell.fault == "chunk evicted":
        # A server that evicts one chunk may evict others with it.
        held = set.union(*shards.names())
        seen.present = next((i for i, name in enumerate(names) if name not in held), len(names))
    if cell.expected != FATAL:
        pool.each("release", request=request, seconds=seconds)


def _request_after(pool: RankPool, settings: Settings, seconds: float) -> str:
    """Store, look up and load a new prompt; return what is wrong with that, "" if nothing is."""
    labels, request = some_labels(chunks_of(pool.world)), f"request-{next(_labels)}"
    _store(pool, labels, seconds)
    answers = pool.each("lookup", labels=labels, request=request, seconds=seconds, may_raise=True)
    loads = pool.each("load", labels=labels, request=request, seconds=seconds, may_raise=True)
    pool.each("release", request=request, seconds=seconds)
    wanted = len(labels) * settings.chunk_size
    for rank, answer in enumerate([*answers, *loads]):
        if answer.get("tokens") not in (wanted, None) or "raised" in answer or answer.get("wrong"):
            return f"rank {rank % pool.world}: {_shown(answer, settings.chunk_size)}"
    held = [0]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        held = [answer["bytes"] for answer in pool.each("held", seconds=seconds)]
        if not any(held):
            return ""
        time.sleep(0.05)
    return f"{held} bytes of the pools are never given back"


def _store(pool: RankPool, labels: list[int], seconds: float) -> None:
    """Store a prompt, and leave nothing of it in memory that a load could find by luck."""
    pool.each("store", labels=labels, seconds=seconds)
    pool.each("poison", seconds=seconds, may_raise=True)


def _shown(answer: Answer, chunk_size: int) -> str:
    if "raised" in answer:
        return f"raised {answer['raised']}"
    return f"{answer['tokens'] // chunk_size} chunks, wrong {answer.get('wrong', [])}"


@contextlib.contextmanager
def _recovered(pool: RankPool, shards: Shards, rank: int, seconds: float) -> Iterator[None]:
    """Let the server of `rank` run again after the block, and take the planted faults away."""
    server = shards.servers[rank]
    pid = server.pid
    try:
        yield
    finally:
        if _is_alive(pid):
            os.kill(pid, signal.SIGCONT)
        else:
            server.stop()
            server.start()
    pool.ask(rank, "heal", seconds=seconds)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - one line of a process
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def problems_of(seen: Seen, cell: Cell, world: int, rank: int, chunk_size: int) -> list[str]:
    """Return what is wrong with a cell, nothing if it is as it must be."""
    if seen.hung:
        return [seen.hung]
    wrong: list[str] = []
    counts: set[int | str] = set()
    for each, answer in enumerate(seen.loads):
        if "raised" in answer:
            counts.add(FATAL)
            continue
        counts.add(answer["tokens"] // chunk_size)
        if not answer["prefix"] or answer["wrong"] or answer["strayed"]:
            wrong.append(
                f"rank {each} has wrong bytes: chunks {answer['wrong']}, {answer['strayed']} "
                f"slots of somebody else"
            )
    wanted = allowed(cell, cell.expected, seen.present, world, rank)
    if len(counts) != 1:
        wrong.append(f"the ranks differ: {[_shown(load, chunk_size) for load in seen.loads]}")
    elif not counts <= wanted:
        wrong.append(
            f"all ranks loaded {counts.pop()} of {chunks_of(world)} chunks, expected "
            f"{' or '.join(map(str, wanted))}"
        )
    promise = promised(cell)
    if promise is not None and seen.promised not in allowed(
        cell, promise, seen.present, world, rank
    ):
        wrong.append(f"the lookup promised {seen.promised} of {chunks_of(world)} chunks")
    if seen.after:
        wrong.append(f"the next request does not work: {seen.after}")
    return wrong


def check(ranks: Replica, cell: Cell, rank: int = RANK) -> None:
    """Run a cell on ranks that ran others before; new ones take their place if it went wrong."""
    pool, shards, settings = ranks
    deadline = DEADLINE if is_sharded() else STOCK_DEADLINE
    problems = ["the cell ended in an error"]
    try:
        seen = run_cell(pool, shards, settings, cell, rank, deadline)
        problems = problems_of(seen, cell, pool.world, rank, settings.chunk_size)
    finally:
        if problems or cell.expected == FATAL:
            pool.restart(settings)
    assert not problems, "; ".join(problems)
