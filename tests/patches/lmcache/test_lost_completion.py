"""A completion is kept until its future is registered, whoever asked and whenever it comes."""

from __future__ import annotations

import asyncio
import functools
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lmcache.v1.storage_backend.native_clients import aerospike_client
from lmcache.v1.storage_backend.native_clients.connector_client_base import ConnectorClientBase
from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient

from tests.patches.lmcache.deadline import hung, started, wait_until, within
from tests.patches.lmcache.fake_native import FakeNative, everything_succeeds
from tests.patches.lmcache.loops import LoopThread, loop_thread
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_a_completion_that_is_drained_before_submit_returns": r"_sync did not return within",
    "test_a_subclass_is_covered": r"batch_exists_sync did not return within",
    "test_an_await_on_another_loop": r"attached to a different loop",
    "test_a_hundred_thousand_calls_from_sixteen_threads": r"a thread made no progress for",
    "test_close_under_load_ends_every_call": r"a thread made no progress for|a caller was not told",
    "test_a_call_after_close_is_refused": r"batch_exists_sync did not return within",
    "test_native_threads_end_before_their_buffers_are_forgotten": r"told before native code",
    "test_a_failing_drain_stops_native_threads": r"native threads still run",
}

SECONDS = 5.0
# A loaded machine may leave one thread out for a while; one that has lost its completion never
# comes back.
STALL_SECONDS = 10.0

OPERATIONS = ("get", "set", "exists")


@pytest.fixture(autouse=True)
def kept_completions() -> None:
    """Here the pinned release loses what it loses."""


def sync_call(client: ConnectorClientBase[Any], operation: str) -> Callable[[], object]:
    method = getattr(client, f"batch_{operation}_sync")
    arguments = [["key"]] if operation == "exists" else [["key"], [memoryview(bytearray(4))]]
    return lambda: method(*arguments)


def new_client(thread: LoopThread, native: object) -> ConnectorClientBase[Any]:
    async def construct() -> ConnectorClientBase[Any]:
        return ConnectorClientBase(native, thread.loop)

    return thread.run(SECONDS, "the constructor", construct)


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        server.client().set("key", b"1234")
        yield server


def resp_client(thread: LoopThread, server: ValkeyServer, workers: int = 4) -> RESPClient:
    return RESPClient(server.host, server.port, workers, thread.loop)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_completion_that_is_drained_before_submit_returns(
    storage_loop: LoopThread, operation: str
) -> None:
    client = new_client(storage_loop, FakeNative(everything_succeeds, drain_first=True))
    within(SECONDS, f"batch_{operation}_sync", sync_call(client, operation))
    assert not client._pending


def test_a_subclass_is_covered(storage_loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    native = FakeNative(everything_succeeds, drain_first=True)
    monkeypatch.setattr(aerospike_client, "AEROSPIKE_AVAILABLE", True)
    monkeypatch.setattr(
        aerospike_client, "LMCacheAerospikeClient", lambda *arguments: native, raising=False
    )
    client = aerospike_client.AerospikeClient("host:1", "ns", "set", 1, loop=storage_loop.loop)
    answer = within(SECONDS, "batch_exists_sync", lambda: client.batch_exists_sync(["key"]))
    assert answer == [True]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_await_on_another_loop(storage_loop: LoopThread, operation: str) -> None:
    client = new_client(storage_loop, FakeNative(everything_succeeds))
    method = getattr(client, f"batch_{operation}")
    arguments = [["key"]] if operation == "exists" else [["key"], [memoryview(bytearray(4))]]
    with loop_thread() as other:
        other.run(SECONDS, f"batch_{operation}", lambda: method(*arguments))


def test_a_hundred_thousand_calls_from_sixteen_threads(
    storage_loop: LoopThread, valkey: ValkeyServer
) -> None:
    client = resp_client(storage_loop, valkey)
    progress = keep_calling(client, threads=16, calls=100_000 // 16)
    watch(progress, until=lambda: all(each.done() for each in progress.ends))
    assert sum(progress.counts) == 100_000
    assert [each.exception() for each in progress.ends] == [None] * 16
    assert not client._pending


def test_close_under_load_ends_every_call(storage_loop: LoopThread, valkey: ValkeyServer) -> None:
    client = resp_client(storage_loop, valkey)
    progress = keep_calling(client, threads=8, calls=10**9)
    watch(progress, until=lambda: all(count > 2000 for count in progress.counts))
    within(SECONDS, "close()", client.close)
    wait_until(lambda: all(each.done() for each in progress.ends), SECONDS, "a caller was not told")
    assert {str(each.exception()) for each in progress.ends} == {"Client closed"}


def test_a_call_after_close_is_refused(storage_loop: LoopThread, valkey: ValkeyServer) -> None:
    client = resp_client(storage_loop, valkey)
    within(SECONDS, "close()", client.close)
    with pytest.raises(RuntimeError, match="Client closed"):
        within(SECONDS, "batch_exists_sync", lambda: client.batch_exists_sync(["key"]))


def test_native_threads_end_before_their_buffers_are_forgotten(storage_loop: LoopThread) -> None:
    """The caller frees its buffer once told, so it must not be told while native code runs."""
    told_early: list[bool] = []
    waiting: list[Any] = []

    def close() -> None:
        time.sleep(0.2)
        told_early.append(any(each.done() for each in waiting))

    native = FakeNative(on_close=close)
    client = new_client(storage_loop, native)
    waiting += started([sync_call(client, operation) for operation in OPERATIONS])
    wait_until(lambda: len(native.calls) == 3, SECONDS, "not every call reached native code")
    within(SECONDS, "close()", client.close)
    for each in waiting:
        with pytest.raises(RuntimeError, match="Client closed"):
            each.result_within(SECONDS, "a call at close()")
    assert told_early == [False], "a caller was told before native code had stopped"


def test_a_failing_drain_stops_native_threads(storage_loop: LoopThread) -> None:
    native = FakeNative()
    client = new_client(storage_loop, native)
    [call] = started([sync_call(client, "get")])
    wait_until(lambda: len(native.calls) == 1, SECONDS, "the call did not reach native code")
    native.drain_error = OSError("the completion queue is broken")
    native.wake()
    with pytest.raises(RuntimeError, match="the completion queue is broken"):
        call.result_within(SECONDS, "a call at a failing drain")
    assert native.closed, "the caller was told, and native threads still run on its buffer"


@pytest.mark.patched_only(reason="stock keeps them too: it forgets on completion only")
def test_a_cancelled_caller_leaves_its_buffers_to_native_code(storage_loop: LoopThread) -> None:
    native = FakeNative()
    client = new_client(storage_loop, native)
    buffers = [memoryview(bytearray(4))]
    alive = weakref.ref(buffers[0])

    async def cancelled() -> None:
        await asyncio.wait_for(client.batch_get(["key"], buffers), 0.05)

    with pytest.raises(TimeoutError):
        storage_loop.run(SECONDS, "a cancelled get", cancelled)
    buffers.clear()
    assert alive() is not None
    native.complete(native.calls.pop(), [True])

    def let_go() -> bool:
        gc.collect()  # the traceback of the time-out holds the caller's frame
        return alive() is None

    wait_until(let_go, SECONDS, "the buffer was not let go")
    assert not client._pending


class Progress:
    """What `keep_calling` has done so far: calls per thread, and each thread's end."""

    def __init__(self, threads: int) -> None:
        self.counts = [0] * threads
        self.ends: list[Any] = []


def keep_calling(client: RESPClient, threads: int, calls: int) -> Progress:
    """Start threads that each make `calls` calls, mostly EXISTS, with a GET and a SET in ten."""
    progress = Progress(threads)
    order = ["exists"] * 8 + ["get", "set"]

    def work(index: int) -> None:
        for number in range(calls):
            sync_call(client, order[number % 10])()
            progress.counts[index] += 1

    progress.ends = started([functools.partial(work, index) for index in range(threads)])
    return progress


def watch(progress: Progress, until: Callable[[], bool]) -> None:
    """Wait as long as every thread that has not ended makes progress.

    Raises:
        HungError: one made none for STALL_SECONDS.
    """
    last, since = list(progress.counts), [time.monotonic()] * len(progress.counts)
    while not until():
        now = time.monotonic()
        for index, count in enumerate(progress.counts):
            if count != last[index] or progress.ends[index].done():
                last[index], since[index] = count, now
            elif now - since[index] > STALL_SECONDS:
                raise hung(
                    f"a thread made no progress for {STALL_SECONDS:g} s after "
                    f"{sum(progress.counts)} calls by all"
                )
        time.sleep(0.05)
