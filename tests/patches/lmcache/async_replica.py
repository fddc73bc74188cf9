"""Three ranks with asynchronous loading, their servers, and the scheduler that asks them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.settings import Settings
from tests.patches.lmcache.rank_pool import LABELS, TAIL, WORLD, assert_loaded
from tests.patches.lmcache.scheduler import Scheduler, scheduler


@dataclass
class Replica:
    """Three ranks, their servers and the scheduler that asks them."""

    pool: RankPool
    shards: Shards
    settings: Settings
    scheduler: Scheduler

    def names(self) -> list[str]:
        """Return the names of the prompt's chunks."""
        names: list[str] = self.pool.ask(0, "names", labels=LABELS)["names"]
        return names

    def load(self, chunks: int, begin: int = 0, request: str = "r") -> None:
        """Load chunks [`begin`, `chunks`) on all ranks and check every byte; end the request."""
        answers = self.pool.each(
            "load", labels=LABELS, tail=TAIL, begin=begin, end=chunks, request=request
        )
        assert_loaded(answers, chunks - begin, self.settings)
        self.pool.each("release", request=request)

    def ask(self, chunks: int, request: str = "r") -> None:
        """Look the prompt up and check that the answer is `chunks` chunks."""
        answer = self.scheduler.ask(LABELS, TAIL, request)
        wanted = chunks * self.settings.chunk_size
        assert answer == wanted, f"answered {answer}, not the prefix of the union, {wanted}"

    def held(self) -> list[int]:
        """Return the bytes that each rank has taken from its pool."""
        return [held["bytes"] for held in self.pool.each("held")]


@contextlib.contextmanager
def started(pool: RankPool, shards: Shards, *, local_cpu: bool = False) -> Iterator[Replica]:
    """Start new ranks, which have nothing in L1, on the same servers, and a new scheduler."""
    settings = Settings(
        url=shards.url, asynchronous=True, local_cpu=local_cpu,
        extra={"engine_id": uuid.uuid4().hex},
    )  # fmt: skip
    pool.restart(settings)
    shards.reset_counts()
    with scheduler(settings, WORLD) as asking:
        yield Replica(pool, shards, settings, asking)
