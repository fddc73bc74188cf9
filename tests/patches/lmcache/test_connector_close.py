"""close() returns: of each connector that has a queue, of the back end and of the manager above."""

from __future__ import annotations

import asyncio
import collections
import functools
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.event_manager import EventManager
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.job_executor import pq_executor
from lmcache.v1.storage_backend.job_executor.pq_executor import AsyncPQExecutor
from lmcache.v1.storage_backend.storage_manager import StorageManager

from tests.patches.lmcache.chunks import chunk
from tests.patches.lmcache.deadline import Started, started, wait_until, within
from tests.patches.lmcache.engine import TOKENS, engine, engine_on, key
from tests.patches.lmcache.fake_native import FakeNative
from tests.patches.lmcache.loops import LoopThread, loop_thread
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_connectors_close_twice": r"7 of 7 connectors hang",
    "test_a_back_end_closes": r"close\(\) of the back end did not return",
    "test_a_back_end_closes_over_jobs_that_do_not_end": r"close\(\) of the back end did not return",
    "test_stores_that_are_queued_reach_the_server": r"close\(\) of the back end did not return",
    "test_a_back_end_closes_without_its_loop": r"close\(\) of the back end did not return",
    "test_a_storage_manager_closes_twice": r"close\(\) of the manager did not return",
    "test_the_pool_closes_when_nothing_uses_it": r"close\(\) of the manager did not return",
    "test_the_executor_closes_over_jobs_that_do_not_end": r"the shutdown did not|a caller did not",
    "test_a_closed_executor_takes_no_jobs": r"a late job did not return",
    "test_a_shutdown_that_would_wait_for_itself_is_refused": r"the shutdown did not return",
}

SECONDS = 3.0
PAUSE_SECONDS = 0.5
# What a shutdown gives to the jobs that are left; five seconds unless a test says so.
PATIENCE_SECONDS = 0.5

CONNECTORS = {
    "RESPConnector": "redis_connector",
    "RedisConnector": "redis_connector",
    "RedisClusterConnector": "redis_connector",
    "S3Connector": "s3_connector",
    "SageMakerHyperPodConnector": "sagemaker_hyperpod_connector",
    "EICConnector": "eic_connector",
    "MockConnector": "mock_connector",
}


class Closable:
    """Whatever a connector closes beside its queue."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self.closed = 0

    def close(self) -> Any:
        self.closed += 1
        return asyncio.sleep(0) if self._waits else None


def bare(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a connector with a queue and what close() uses, and no connection."""
    monkeypatch.setitem(sys.modules, "eic", ModuleType("eic"))
    module = importlib.import_module(f"lmcache.v1.storage_backend.connector.{CONNECTORS[name]}")
    connector = object.__new__(getattr(module, name))
    connector.client = Closable(waits=False)
    connector.connection = connector.cluster = Closable(waits=True)
    connector.lru_store = connector.http_session = Closable(waits=True)
    connector.shared_memory_map = connector.shared_memory_obj = None
    connector.stats = collections.Counter()
    return connector


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shutdown give up after PATIENCE_SECONDS."""
    monkeypatch.setattr(pq_executor, "SHUTDOWN_TIMEOUT_SECS", PATIENCE_SECONDS, raising=False)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as running:
        yield running


def test_connectors_close_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them at once, each on a loop of its own, because each waits on the release."""

    def closed(connector: Any) -> None:
        with loop_thread() as thread:
            connector.pq_executor = AsyncPQExecutor(thread.loop)
            for _ in range(2):
                thread.run(SECONDS, f"close() of {type(connector).__name__}", connector.close)
            assert all(worker.done() for worker in connector.pq_executor._workers)

    connectors = [bare(name, monkeypatch) for name in CONNECTORS]
    closing = started([functools.partial(closed, connector) for connector in connectors])
    wait_until(lambda: all(each.done() for each in closing), 3 * SECONDS, "the tests hang")
    hung = [str(error) for each in closing if (error := each.exception()) is not None]
    assert not hung, f"{len(hung)} of {len(CONNECTORS)} connectors hang: {', '.join(hung)}"


def test_a_back_end_closes(server: ValkeyServer) -> None:
    with engine(f"{server.host}:{server.port}") as rank:
        for _ in range(2):
            begun = time.monotonic()
            within(SECONDS, "close() of the back end", rank.backend.close)
            assert time.monotonic() - begun < 1.0
        rank.storage.run(1.0, "the loop", lambda: asyncio.sleep(0))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("queued", [0, 8])
def test_a_back_end_closes_over_jobs_that_do_not_end(
    queued: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four jobs occupy the workers, the others wait; the server never answers."""
    native = FakeNative()
    with engine_on(native, monkeypatch) as rank:
        prefetches = [
            asyncio.run_coroutine_threadsafe(rank.prefetch([key(index)]), rank.storage.loop)
            for index in range(4 + queued)
        ]
        [lookup] = started([lambda: rank.backend.contains(key(100))])
        wait_until(lambda: len(native.calls) == 4, SECONDS, "four jobs did not begin")
        within(SECONDS, "close() of the back end", rank.backend.close)
        assert native.closed
        wait_until(lambda: all(each.done() for each in prefetches), 1.0, "a caller still waits")
        assert [each.result() for each in prefetches] == [[]] * (4 + queued)
        assert lookup.result_within(1.0, "a lookup") is False


def test_stores_that_are_queued_reach_the_server(server: ValkeyServer) -> None:
    server.client().flushall()
    with engine(f"{server.host}:{server.port}", pool_chunks=64) as rank:
        for index in range(48):
            stored = rank.take(chunk(index, rank.chunk_bytes))
            rank.backend.submit_put_task(key(index), stored)
        within(SECONDS, "close() of the back end", rank.backend.close)
        assert server.client().dbsize() == 48


def test_a_back_end_closes_without_its_loop(server: ValkeyServer) -> None:
    with engine(f"{server.host}:{server.port}") as rank:
        rank.backend.loop = asyncio.new_event_loop()
        within(SECONDS, "close() of the back end", rank.backend.close)
        rank.backend.loop.close()


def manager_of(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a storage manager with a pool and a server."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=TOKENS,
        local_cpu=True,
        max_local_cpu_size=0.01,
        remote_url=f"resp://{server.host}:{server.port}",
        remote_serde="naive",
        save_unfull_chunk=False,
        extra_config={"save_chunk_meta": False, "resp_num_threads": 2},
    )
    metadata = LMCacheMetadata(
        model_name="model",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(1, 1, TOKENS, 1, 64),
        use_mla=True,
        chunk_size=TOKENS,
        role="worker",
    )
    with monkeypatch.context() as patch:
        # On the release its thread never ends, and would keep the process.
        patch.setattr(threading, "Thread", functools.partial(threading.Thread, daemon=True))
        return StorageManager(config, metadata, EventManager())


def test_a_storage_manager_closes_twice(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(server, monkeypatch)
    for _ in range(2):
        within(SECONDS, "close() of the manager", manager.close)
        assert not manager.thread.is_alive()


def test_the_pool_closes_when_nothing_uses_it(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(server, monkeypatch)
    pool = manager.storage_backends["LocalCPUBackend"]
    remote = manager.storage_backends["RemoteBackend"]
    close, left = pool.close, []

    def close_pool() -> None:
        left.append(len(remote.put_tasks))
        close()

    monkeypatch.setattr(pool, "close", close_pool)
    keys = [key(index) for index in range(8)]
    with server.paused():
        shapes, dtypes = manager.metadata.get_shapes(), manager.metadata.get_dtypes()
        stored = [manager.allocate(shapes, dtypes, busy_loop=False) for _ in keys]
        manager.batched_put(keys, stored)
        (closing,) = started([manager.close])
        time.sleep(PAUSE_SECONDS)
    closing.result_within(2 * SECONDS, "close() of the manager")
    assert left == [0], f"{left[0]} stores read from the pool that was closed"


def shut_down(executor: AsyncPQExecutor, loop: LoopThread, *, wait: bool) -> None:
    loop.run(SECONDS, "the shutdown", lambda: executor.shutdown_async(wait=wait))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("wait", [True, False])
def test_the_executor_closes_over_jobs_that_do_not_end(
    storage_loop: LoopThread, wait: bool
) -> None:
    executor = AsyncPQExecutor(storage_loop.loop, max_workers=2)
    outcomes: list[Started[Any]] = started(
        [lambda: submitted(executor, storage_loop, asyncio.Event().wait) for _ in range(5)]
    )
    wait_until(lambda: executor._queue.qsize() == 3, SECONDS, "two jobs did not begin")
    shut_down(executor, storage_loop, wait=wait)
    for outcome in outcomes:
        assert outcome.result_within(1.0, "a caller") == "The executor is shut down"


def test_a_closed_executor_takes_no_jobs(storage_loop: LoopThread) -> None:
    executor = AsyncPQExecutor(storage_loop.loop)
    shut_down(executor, storage_loop, wait=True)
    [late] = started([lambda: submitted(executor, storage_loop, one)])
    assert late.result_within(1.0, "a late job") == "The executor is shut down"


def test_a_shutdown_that_would_wait_for_itself_is_refused(storage_loop: LoopThread) -> None:
    executor = AsyncPQExecutor(storage_loop.loop)

    async def shut_down_here() -> None:
        executor.shutdown(wait=True)

    with pytest.raises(RuntimeError, match="await shutdown_async"):
        storage_loop.run(SECONDS, "the shutdown", shut_down_here)
    within(SECONDS, "the shutdown elsewhere", executor.shutdown)


async def one() -> int:
    return 1


def submitted(executor: AsyncPQExecutor, loop: LoopThread, job: Callable[[], Any]) -> str:
    """Submit a job and return what its caller gets."""
    future = asyncio.run_coroutine_threadsafe(executor.submit_job(job), loop.loop)
    try:
        return repr(future.result())
    except RuntimeError as error:
        return str(error)
