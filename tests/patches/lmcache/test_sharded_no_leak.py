"""Mixed requests on three real ranks, and every count of every rank is back where it was.

`make no-leak` plays ten thousand in each mode, `make test` a tenth of that.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.template import Template
from tests.patches.lmcache.mixed_requests import MixedRequests
from tests.patches.lmcache.rank_pool import assert_loaded, replica, site
from tests.patches.lmcache.scheduler import scheduler

# The release leaks from the first aborted request on; test_lookup_lease.py shows each of its ways.
STOCK_REASONS: dict[str, str] = {}

pytestmark = pytest.mark.patched_only(reason="stock asserts on a freed chunk long before the end")

WORLD = 3
REQUESTS = int(os.environ.get("HEADRACE_MIXED_REQUESTS", "1000"))
# Several times what they take on two cores.
SECONDS = 60.0 + REQUESTS / 20
SETTLED_SECONDS = 15.0
POOL_CHUNKS = 32
PAGE = 4096
# What an account must not show once every request has ended.
HELD = (
    "bytes_elsewhere", "references_elsewhere", "pinned", "watched_pins", "leases", "pins", "events",
)  # fmt: skip
# The least share of requests that must have come to each end.
LEAST = {
    "hit": 0.3, "missed": 0.02, "fell short": 0.02, "aborted": 0.1, "asked again": 0.05,
    "timed out": 0.003,
}  # fmt: skip


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RankPool, Shards]]:
    folder = tmp_path_factory.mktemp("mixed")
    module = "tests.patches.lmcache.mixed_process"
    with (
        Template(folder / "import.log", site(), module) as source,
        replica(source, folder, WORLD) as running,
    ):
        yield running


@contextlib.contextmanager
def requests_on(three: tuple[RankPool, Shards], *, asynchronous: bool) -> Iterator[MixedRequests]:
    """Open engines with nothing in them, on empty servers."""
    pool, shards = three
    shards.flush()
    settings = Settings(
        url=shards.url,
        local_cpu=True,
        cpu_bytes=WORLD * POOL_CHUNKS * PAGE,
        # What is to time out is told to. The server is back then, and its answer comes late.
        blocking_seconds=10.0,
        asynchronous=asynchronous,
        extra={
            "engine_id": uuid.uuid4().hex,
            "resp_socket_timeout_ms": 20_000,
            "lookup_backoff_time": 0.001,
        },
        config={"lookup_timeout_ms": 10_000},
    )
    pool.restart(settings)
    until = time.monotonic() + SECONDS
    with scheduler(settings, WORLD) if asynchronous else contextlib.nullcontext() as asking:
        yield MixedRequests(pool, shards, settings, asking, seed=3, until=until)


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_mixed_requests_leave_nothing(three: tuple[RankPool, Shards], asynchronous: bool) -> None:
    with requests_on(three, asynchronous=asynchronous) as requests:
        before = requests.each("account")
        began = time.monotonic()
        requests.play(REQUESTS)
        print(f"{REQUESTS} requests in {time.monotonic() - began:.1f} s: {dict(requests.done)}")
        settle(requests)
        requests.each("clear", locations=["LocalCPUBackend"])
        assert requests.each("account") == before
        answer_next(requests)
        check_mix(requests)


@pytest.mark.parametrize(
    ("plant", "found"),
    [("forget_aborts", r"rank 1: \d+ leases"), ("release_twice", "Double unpin occurred")],
)
def test_what_is_planted_shows(three: tuple[RankPool, Shards], plant: str, found: str) -> None:
    with requests_on(three, asynchronous=False) as requests:
        requests.pool.ask(1, plant)
        requests.play(60)
        with pytest.raises(AssertionError, match=found):
            settle(requests, seconds=1.0)


def settle(requests: MixedRequests, seconds: float = SETTLED_SECONDS) -> None:
    """Wait until nothing is held but by L1: what was given up may still be on its way."""
    until = time.monotonic() + seconds
    while found := wrong(requests.each("account")):
        assert time.monotonic() < until, f"after {seconds:g} s: {', '.join(found)}"
        time.sleep(0.1)


def wrong(accounts: list[dict[str, Any]]) -> list[str]:
    """Return what each rank holds beside the chunks in L1, and what was released too often."""
    return [
        f"rank {rank}: {found}"
        for rank, account in enumerate(accounts)
        for found in (
            *(f"{account[what]} {what}" for what in HELD if account[what]),
            *account["complaints"],
        )
    ]


def answer_next(requests: MixedRequests) -> None:
    """Check that a new prompt is stored, found and loaded from the servers."""
    labels, settings = list(range(90_001, 90_008)), requests.settings
    requests.each("store", labels=labels)
    requests.each("clear", locations=["LocalCPUBackend"])
    requests.each("poison")
    assert requests.find(labels, "next") == len(labels)
    assert_loaded(requests.each("load", labels=labels, request="next"), len(labels), settings)
    requests.each("release", request="next")


def check_mix(requests: MixedRequests) -> None:
    """Check that there was enough of everything."""
    done = requests.done
    assert done.pop("loaded beside another with its prefix") > REQUESTS / 20, done
    for way, least in LEAST.items():
        assert done[way] >= least * REQUESTS, f"only {done[way]} {way}: {dict(done)}"
