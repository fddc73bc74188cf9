"""Mixed requests to three real ranks, several of them open at a time, in a seeded order.

Hits, misses, short loads, aborts, lookups asked again, servers that fall silent: what a scheduler
and its workers do for each is done here, on the ranks and on LMCache's own lookup client.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.wire import Answer
from tests.patches.lmcache.deadline import hung
from tests.patches.lmcache.rank_pool import PATIENCE, assert_loaded
from tests.patches.lmcache.scheduler import Scheduler

IN_FLIGHT = 6
# How long a lookup or load waits for a server that is silent.
SHORT_SECONDS = 0.15
FIRSTS, ENDS, CHUNKS = 3, 4, 7
# Four beginnings of three chunks, shared by eight prompts each: more than all L1s together hold.
PROMPTS = [
    [*range(100 * first, 100 * first + FIRSTS), *range(end, end + ENDS)]
    for first in range(1, 5)
    for end in range(1000 * first, 1000 * first + 80, 10)
]


@dataclass
class Request:
    """One open request.

    Attributes:
        promised: what its lookup found, in chunks; None while the answer is to come.
        server: a server that is to fall silent, under the lookup or the load.
        robbed: whether a chunk of its prompt was taken away since its lookup.
    """

    name: str
    labels: list[int]
    promised: int | None = None
    server: int | None = None
    robbed: bool = False


class MixedRequests:
    """Plays requests to a replica.

    Args:
        asking: the scheduler's end of asynchronous lookups; None for synchronous ones.
        until: when, on the monotonic clock, all of it must have come to an end.

    Attributes:
        done: how many requests came to what.
    """

    def __init__(
        self,
        pool: RankPool,
        shards: Shards,
        settings: Settings,
        asking: Scheduler | None,
        seed: int,
        until: float,
    ) -> None:
        self.pool = pool
        self.shards = shards
        self.settings = settings
        self.asking = asking
        self.random = random.Random(seed)
        self.until = until
        self.open: dict[str, Request] = {}
        self.done: Counter[str] = Counter()
        self._clients = [server.client() for server in shards.servers]
        self._names = [pool.ask(0, "names", labels=labels)["names"] for labels in PROMPTS]

    def play(self, number: int) -> None:
        """Begin `number` requests and end them all.

        Raises:
            RanksHungError, HungError: a command, or all of it, takes too long.
            AssertionError: ranks loaded wrong bytes, or not the same.
        """
        for each in range(number):
            while len(self.open) >= IN_FLIGHT:
                self._go_on(self.random.choice(list(self.open.values())))
            self._begin(f"request-{each}")
        while self.open:
            self._go_on(next(iter(self.open.values())))

    def each(self, do: str, **request: Any) -> list[Answer]:
        """Let all ranks do something, under what is left of the deadline."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise hung(f"{sum(self.done.values())} requests took too long")
        return self.pool.each(do, seconds=min(PATIENCE, left), **request)

    def find(self, labels: Sequence[int], name: str) -> int:
        """Open a request and return how many chunks of its prompt can be loaded."""
        request = Request(name, list(labels))
        self._ask(request)
        return self._answer(request)

    def _begin(self, name: str) -> None:
        number = self.random.randrange(len(PROMPTS))
        request = self.open[name] = Request(name, PROMPTS[number])
        draw = self.random.random()
        if draw < 0.15:
            self.each("store", labels=request.labels)
        elif draw < 0.25:
            self._lose(request.labels)
        if self.random.random() < 0.02:
            request.server = self.random.randrange(self.pool.world)
        if self.asking is not None and request.server is not None:
            self._time_out(request, request.server)
        else:
            self._ask(request)

    def _ask(self, request: Request) -> None:
        """Look the request up; an asynchronous answer is left to come."""
        request.promised, request.robbed = None, False
        if self.asking is not None:
            self.asking.begin(request.labels, request.name)
            return
        answers = self.each("lookup", labels=request.labels, request=request.name)
        request.promised = min(answer["tokens"] for answer in answers) // self.settings.chunk_size

    def _time_out(self, request: Request, server: int) -> None:
        """Let the scheduler give an asynchronous lookup up, and sometimes ask anew at once."""
        assert self.asking is not None
        client = self.asking.client
        patience = client.config.lookup_timeout_ms
        # L1 would answer for the server.
        self.pool.ask(server, "drop", labels=request.labels, chunk=server)
        with self._silent(server):
            began = time.monotonic()
            self._ask(request)
            client.config.lookup_timeout_ms = SHORT_SECONDS * 1000
            try:
                self._answer(request)
            finally:
                client.config.lookup_timeout_ms = patience
            self.done["timed out"] += time.monotonic() - began > SHORT_SECONDS
            if self.random.random() < 0.5:
                self._ask_again(request)

    def _go_on(self, request: Request) -> None:
        draw = self.random.random()
        if draw < 0.15:
            self._end(request, "aborted", aborted=True)
        elif (promised := self._answer(request)) == 0:
            self._end(request, "missed", store=True)
        elif draw < 0.25:
            self._ask_again(request)
        else:
            self._load(request, promised)

    def _ask_again(self, request: Request) -> None:
        if self.asking is not None:
            self.asking.client.clear_lookup_status(request.name)
        self._ask(request)
        self.done["asked again"] += 1

    def _answer(self, request: Request) -> int:
        if request.promised is None:
            assert self.asking is not None
            tokens = self.asking.ask(request.labels, request=request.name)
            request.promised = tokens // self.settings.chunk_size
        return request.promised

    def _load(self, request: Request, promised: int) -> None:
        begin = self.random.randrange(promised)
        end = self.random.randrange(begin + 1, promised + 1)
        silent = request.server if self.asking is None else None
        if silent is not None:
            # All of the prompt, of which L1 would have had the server's part.
            begin, end = 0, promised
            self.pool.ask(silent, "drop", labels=request.labels, chunk=silent)
        elif self.random.random() < 0.1:
            self._shorten(request)
        steps: list[dict[str, Any]] = [
            {"do": "load", "labels": request.labels, "begin": begin, "end": end,
             "request": request.name},
            # The end of a step that scheduled the request: it may have several.
            *[{"do": "release", "request": request.name}] * self.random.randrange(1, 3),
        ]  # fmt: skip
        if silent is not None:
            steps[:0] = [{"do": "wait_at_most", "seconds": SHORT_SECONDS}]
            steps += [{"do": "wait_at_most", "seconds": self.settings.blocking_seconds}]
        with self._silent(silent):
            answers = self.each("steps", steps=steps)
        loads = [answer["answers"][int(silent is not None)] for answer in answers]
        loaded = loads[0]["tokens"] // self.settings.chunk_size
        assert_loaded(loads, loaded, self.settings, of=end - begin)
        short = loaded < end - begin
        assert not short or request.robbed or silent is not None, (
            f"{request.name} loaded {loaded} of {end - begin} chunks, and nothing is missing"
        )
        others = (each for each in self.open.values() if each is not request and each.promised != 0)
        if any(each.labels[:FIRSTS] == request.labels[:FIRSTS] for each in others):
            self.done["loaded beside another with its prefix"] += 1
        self.done["timed out"] += short and silent is not None
        self._end(request, "fell short" if short else "hit", store=short)

    def _shorten(self, request: Request) -> None:
        """Take away, after its lookup, what a request was promised."""
        if self.asking is None:
            self._lose(request.labels)
        else:
            # What an asynchronous lookup brought can only be let go.
            one = self.random.randrange(self.pool.world)
            self.pool.ask(one, "release", request=request.name)
            request.robbed = True

    def _end(
        self, request: Request, how: str, *, store: bool = False, aborted: bool = False
    ) -> None:
        """End a request as the connector's request_finished and get_finished do."""
        del self.open[request.name]
        if self.asking is not None and aborted:
            self.asking.client.cancel_lookup(request.name)
        elif self.asking is not None:
            self.asking.client.clear_lookup_status(request.name)
        stored = [{"do": "store", "labels": request.labels}] if store else []
        self.each("steps", steps=[*stored, {"do": "release", "request": request.name}])
        self.done[how] += 1

    def _lose(self, labels: Sequence[int]) -> None:
        """Take one chunk of a prompt away, from L1 and from its server; often the first."""
        chunk = 0 if self.random.random() < 0.3 else self.random.randrange(CHUNKS)
        owner = chunk % self.pool.world
        for request in self.open.values():
            request.robbed |= request.labels[: chunk + 1] == list(labels)[: chunk + 1]
        self.pool.ask(owner, "drop", labels=labels, chunk=chunk)
        self._clients[owner].delete(self._names[PROMPTS.index(list(labels))][chunk])

    @contextlib.contextmanager
    def _silent(self, server: int | None) -> Iterator[None]:
        with contextlib.nullcontext() if server is None else self.shards.servers[server].paused():
            yield
