"""What LMCache's RESP path returns is what was loaded: on a real Valkey, through the connector."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.patches.lmcache.chunks import (
    MEDIUM_CHUNK_BYTES,
    REAL_CHUNK_BYTES,
    chunk,
    poisoned,
)
from tests.patches.lmcache.deadline import started, within
from tests.patches.lmcache.engine import BLOCKING_SECONDS, Engine, content, engine, key
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_a_partial_batch_has_none_in_place": r"not what was stored",
    "test_an_asynchronous_load_is_a_prefix": r"not what was stored",
    "test_a_single_missing_chunk_is_none": r"a miss came back as|a miss took",
    "test_a_deleted_chunk_fails_alone": r"not what was stored",
    "test_an_unusable_value_is_promised_once": r"the unusable chunk came back|is promised again",
    "test_a_silent_server_is_a_miss_after_the_configured_time": r"the load did not return",
    "test_misses_do_not_take_buffers": r"bytes of the pool are gone",
}

# Of 32 bytes stock sees the miss in native code and drops it in Python; of a real chunk it hangs.
SIZES = (32, REAL_CHUNK_BYTES)
SECONDS = 20.0


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as running:
        yield running


@pytest.fixture
def rank(server: ValkeyServer, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine on an empty server; the parameter is its chunk size in bytes."""
    server.client().flushall()
    with engine(f"{server.host}:{server.port}", chunk_bytes=request.param) as built:
        yield built


def store(server: ValkeyServer, rank: Engine, *present: int) -> None:
    for index in present:
        server.client().set(key(index).to_string(), chunk(index, rank.chunk_bytes))


def expected(rank: Engine, *present: int | None) -> list[bytes | None]:
    return [None if index is None else chunk(index, rank.chunk_bytes) for index in present]


def assert_loaded(memory_objs: list[Any], wanted: list[bytes | None]) -> None:
    """Compare without letting a mismatch print megabytes."""
    found = [content(memory_obj) for memory_obj in memory_objs]
    assert len(found) == len(wanted), f"{len(found)} entries for {len(wanted)}: not what was stored"
    for index, (found_bytes, wanted_bytes) in enumerate(zip(found, wanted, strict=True)):
        same = found_bytes == wanted_bytes
        assert same, (
            f"entry {index} is {_shown(found_bytes)}, not what was stored: {_shown(wanted_bytes)}"
        )


def _shown(value: bytes | None) -> str:
    if value is None:
        return "a miss"
    return "poison" if value == bytes(poisoned(len(value))) else f"{value[:8].hex()}…"


@pytest.mark.parametrize("rank", SIZES, indirect=True)
def test_a_partial_batch_has_none_in_place(server: ValkeyServer, rank: Engine) -> None:
    store(server, rank, 0, 2, 4)
    keys = [key(index) for index in range(5)]
    loaded = within(SECONDS, "the load", lambda: rank.backend.batched_get_blocking(keys))
    assert_loaded(loaded, expected(rank, 0, None, 2, None, 4))
    assert rank.allocated() == 3 * rank.chunk_pages


@pytest.mark.parametrize("rank", SIZES, indirect=True)
def test_an_asynchronous_load_is_a_prefix(server: ValkeyServer, rank: Engine) -> None:
    store(server, rank, 0, 1, 3)
    keys = [key(index) for index in range(4)]
    loaded = rank.storage.run(SECONDS, "the prefetch", lambda: rank.prefetch(keys))
    assert_loaded(loaded, expected(rank, 0, 1))
    assert rank.allocated() == 2 * rank.chunk_pages


@pytest.mark.parametrize("rank", SIZES, indirect=True)
def test_a_single_missing_chunk_is_none(server: ValkeyServer, rank: Engine) -> None:
    started = time.monotonic()
    loaded = within(SECONDS, "the load", lambda: rank.backend.get_blocking(key(0)))
    took = time.monotonic() - started
    assert loaded is None, f"a miss came back as {_shown(content(loaded))}"
    assert took < BLOCKING_SECONDS / 2, f"a miss took {took:.1f} s"
    assert rank.allocated() == 0


@pytest.mark.parametrize("rank", [MEDIUM_CHUNK_BYTES], indirect=True)
def test_a_deleted_chunk_fails_alone(server: ValkeyServer, rank: Engine) -> None:
    store(server, rank, *range(8))
    keys = [key(index) for index in range(8)]
    promised = rank.storage.run(
        SECONDS, "the lookup", lambda: rank.backend.batched_async_contains("lookup", keys)
    )
    assert promised == 8
    server.client().delete(keys[5].to_string())
    loaded = within(SECONDS, "the load", lambda: rank.backend.batched_get_blocking(keys))
    assert_loaded(loaded, expected(rank, 0, 1, 2, 3, 4, None, 6, 7))


@pytest.mark.parametrize("rank", [4096], indirect=True)
def test_an_unusable_value_is_promised_once(server: ValkeyServer, rank: Engine) -> None:
    store(server, rank, 0, 1, 2)
    server.client().set(key(1).to_string(), b"a chunk of another layout")
    keys = [key(index) for index in range(3)]

    def promised() -> list[int]:
        """Ask in each of the ways in which the engine asks."""
        backend = rank.backend
        waiting = started(
            [
                lambda: asyncio.run_coroutine_threadsafe(
                    backend.batched_async_contains("lookup", keys), rank.storage.loop
                ).result(),
                lambda: backend.batched_contains(keys),
                lambda: sum(backend.contains(each) for each in keys),
            ]
        )
        return [each.result_within(SECONDS, "the lookup") for each in waiting]

    loaded = within(SECONDS, "the load", lambda: rank.backend.batched_get_blocking(keys))
    assert content(loaded[1]) is None, "the unusable chunk came back as loaded"
    assert_loaded(loaded, expected(rank, 0, None, 2))
    assert promised() == [1, 1, 2], "the unusable chunk is promised again"

    again = rank.take(chunk(1, rank.chunk_bytes))
    rank.backend.submit_put_task(key(1), again).result(SECONDS)
    assert promised() == [3, 3, 3]
    loaded = within(SECONDS, "the load", lambda: rank.backend.batched_get_blocking(keys))
    assert_loaded(loaded, expected(rank, 0, 1, 2))


@pytest.mark.parametrize("rank", [32], indirect=True)
def test_misses_do_not_take_buffers(server: ValkeyServer, rank: Engine) -> None:
    server.client().set(key(1).to_string(), b"odd")
    keys = [key(index) for index in range(4)]
    kept: list[Any] = []  # so that the garbage collector frees nothing behind our back
    for _ in range(50):
        kept += within(SECONDS, "the load", lambda: rank.backend.batched_get_blocking(keys))
        kept += rank.storage.run(SECONDS, "the prefetch", lambda: rank.prefetch(keys))
        kept.append(within(SECONDS, "the load", lambda: rank.backend.get_blocking(keys[0])))
        assert rank.allocated() == 0, f"{rank.allocated()} bytes of the pool are gone"
    assert kept == [None] * len(kept)


def test_a_silent_server_is_a_miss_after_the_configured_time(server: ValkeyServer) -> None:
    address = f"{server.host}:{server.port}"
    with engine(address, resp_socket_timeout_ms=200) as rank:
        store(server, rank, 0)
        with server.paused():
            loaded = rank.storage.run(5.0, "the load", lambda: rank.connector.get(key(0)))
        assert loaded is None
        assert rank.allocated() == 0
        assert_loaded(
            [rank.storage.run(SECONDS, "the load", lambda: rank.connector.get(key(0)))],
            expected(rank, 0),
        )
