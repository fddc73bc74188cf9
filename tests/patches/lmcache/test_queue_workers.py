"""A queue worker outlives its jobs: those that end late, and those that are cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from lmcache.v1.storage_backend.job_executor.pq_executor import (
    AsyncPQExecutor,
    AsyncPQThreadPoolExecutor,
)

from tests.patches.lmcache.chunks import chunk
from tests.patches.lmcache.deadline import within
from tests.patches.lmcache.engine import BLOCKING_SECONDS, content, engine, key
from tests.patches.lmcache.loops import LoopThread
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_workers_outlive_jobs_that_end_late": r"the job after the late ones did not return",
    "test_workers_outlive_jobs_that_are_cancelled": r"a cancelled job did not return",
    "test_a_load_works_after_as_many_timeouts_as_workers": r"deaf after 4 time-outs",
}

WORKERS = 4
SECONDS = 5.0


class Late:
    """A job that ends, one way or the other, when the test says so."""

    def __init__(self, *, fails: bool) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self._fails = fails

    def in_thread(self) -> str:
        self.begun.set()
        self.may_end.wait(SECONDS)
        if self._fails:
            raise OSError("the server is gone")
        return "too late"

    async def on_loop(self) -> str:
        return await asyncio.to_thread(self.in_thread)


async def one() -> int:
    return 1


async def give_up_on(submitted: Awaitable[Any], begun: Callable[[], bool]) -> None:
    """Wait until the job has begun, then go away as a caller does that has timed out."""
    waiting = asyncio.ensure_future(submitted)
    while not begun():
        await asyncio.sleep(0.002)
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("pool", [False, True], ids=["loop", "threads"])
def test_workers_outlive_jobs_that_end_late(
    storage_loop: LoopThread, pool: bool, fails: bool
) -> None:
    kind = AsyncPQThreadPoolExecutor if pool else AsyncPQExecutor
    executor = kind(storage_loop.loop, max_workers=WORKERS)
    jobs = [Late(fails=fails) for _ in range(WORKERS)]
    for job in jobs:
        work: Any = job.in_thread if pool else job.on_loop
        storage_loop.run(
            SECONDS,
            "giving up",
            lambda: give_up_on(executor.submit_job(work), job.begun.is_set),  # noqa: B023
        )
    for job in jobs:
        job.may_end.set()
    next_job: Any = (lambda: 1) if pool else one
    for _ in range(2 * WORKERS):
        found = storage_loop.run(
            SECONDS, "the job after the late ones", lambda: executor.submit_job(next_job)
        )
        assert found == 1
    alive = [worker for worker in executor._workers if not worker.done()]
    assert len(alive) == WORKERS


def test_workers_outlive_jobs_that_are_cancelled(storage_loop: LoopThread) -> None:
    executor = AsyncPQExecutor(storage_loop.loop, max_workers=WORKERS)

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def submitted() -> str:
        try:
            await executor.submit_job(cancelled)
        except (RuntimeError, asyncio.CancelledError) as error:
            return str(error)
        return "succeeded"

    for _ in range(2 * WORKERS):
        assert storage_loop.run(SECONDS, "a cancelled job", submitted) == "The job was cancelled"
    assert storage_loop.run(SECONDS, "a job after that", lambda: executor.submit_job(one)) == 1


def test_a_load_works_after_as_many_timeouts_as_workers() -> None:
    with (
        ValkeyServer() as server,
        engine(f"{server.host}:{server.port}", scheme="redis", save_chunk_meta=True) as rank,
    ):
        stored = rank.take(chunk(0, rank.chunk_bytes))
        rank.backend.submit_put_task(key(0), stored).result(SECONDS)

        def loaded() -> bytes | None:
            return content(
                within(4 * BLOCKING_SECONDS, "a load", lambda: rank.backend.get_blocking(key(0)))
            )

        assert loaded() == chunk(0, rank.chunk_bytes)
        with server.paused():
            assert [loaded() for _ in range(WORKERS)] == [None] * WORKERS
        # The server now answers the four loads that nobody waits for any more.
        begun = time.monotonic()
        while (found := loaded()) is None and time.monotonic() - begun < 2 * BLOCKING_SECONDS:
            pass
        assert found == chunk(0, rank.chunk_bytes), f"deaf after {WORKERS} time-outs"
