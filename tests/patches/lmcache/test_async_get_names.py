"""What an asynchronous lookup finds, the asynchronous load asks for by the same name: with MLA the
name that worker 0 stored it by, on every rank.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.patches.lmcache.chunks import chunk
from tests.patches.lmcache.deadline import within
from tests.patches.lmcache.engine import TOKENS, Engine, content, engine, key
from tests.patches.lmcache.storage import storage
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_a_load_finds_what_its_lookup_found": r"the lookup found 4, the load 0",
    "test_a_prefetch_is_paired_with_the_ranks_own_keys": r"answered 0 tokens",
}

SECONDS = 30.0
CHUNKS = 4


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as running:
        yield running


@pytest.fixture
def rank_1(server: ValkeyServer) -> Iterator[Engine]:
    """Return rank 1 of two, on a server that holds CHUNKS chunks by worker 0's names."""
    address = f"{server.host}:{server.port}"
    with engine(address, rank=0, world=2) as rank_0:
        for index in range(CHUNKS):
            put = rank_0.backend.submit_put_task(key(index), rank_0.take(chunk(index, 4096)))
            within(SECONDS, "the store", put.result)
    assert server.client().dbsize() == CHUNKS
    with engine(address, rank=1, world=2) as built:
        yield built


def test_a_load_finds_what_its_lookup_found(rank_1: Engine) -> None:
    keys = [key(index, rank=1) for index in range(CHUNKS)]
    found, loaded = lookup_and_load(rank_1, keys)
    assert (found, len(loaded)) == (CHUNKS, CHUNKS), (
        f"the lookup found {found}, the load {len(loaded)}"
    )
    assert [content(each) for each in loaded] == [chunk(index, 4096) for index in range(CHUNKS)]
    assert keys == [key(index, rank=1) for index in range(CHUNKS)], "the caller's keys were changed"


def test_a_prefetch_is_paired_with_the_ranks_own_keys(rank_1: Engine, server: ValkeyServer) -> None:
    server.client().delete(key(2).to_string())
    keys = [key(index, rank=1) for index in range(CHUNKS)]
    lengths = [index * TOKENS for index in range(CHUNKS + 1)]
    with storage() as manager:
        manager.manager.storage_backends = OrderedDict(RemoteBackend=rank_1.backend)
        answer = rank_1.storage.run(
            SECONDS, "the prefetch", lambda: manager.prefetch("lookup", keys, lengths)
        )
        assert answer == 2 * TOKENS, f"answered {answer} tokens"
        pairs = manager.pairs("lookup")
    assert [(each, content(loaded)) for each, loaded in pairs] == [
        (key(index, rank=1), chunk(index, 4096)) for index in range(2)
    ]


@pytest.mark.patched_only(reason="holds on stock; the patch must not change it")
def test_with_names_of_its_own_a_rank_asks_for_them(server: ValkeyServer) -> None:
    address = f"{server.host}:{server.port}"
    with engine(address, rank=1, world=2, remote_enable_mla_worker_id_as0=False) as rank:
        put = rank.backend.submit_put_task(key(0, rank=1), rank.take(chunk("mine", 4096)))
        within(SECONDS, "the store", put.result)
        found, loaded = lookup_and_load(rank, [key(0, rank=1)])
        assert found == 1
        assert [content(each) for each in loaded] == [chunk("mine", 4096)]
        assert server.client().keys("*") == [key(0, rank=1).to_string().encode()]


def lookup_and_load(rank: Engine, keys: list[Any]) -> tuple[int, list[Any]]:
    found: int = rank.storage.run(
        SECONDS, "the lookup", lambda: rank.backend.batched_async_contains("lookup", keys)
    )
    loaded: list[Any] = rank.storage.run(SECONDS, "the load", lambda: rank.prefetch(keys))
    return found, loaded
