"""remove and clear reach the server over RESP, and take nothing that belongs to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.cache_engine import LMCacheEngine, LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata

from tests.patches.lmcache.chunks import chunk
from tests.patches.lmcache.deadline import wait_until, within
from tests.patches.lmcache.engine import Engine, engine, key
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_a_removed_key_is_gone_from_the_server": r"it was not removed",
    "test_a_key_that_is_not_there_is_not_removed": r"the back end's remove never got",
    "test_another_rank_of_an_mla_model_removes_the_name_that_it_reads": r"it was not removed",
    "test_a_removed_key_is_promised_no_more_and_stored_again": r"it was not removed",
    "test_a_full_clear_takes_this_rank_s_names_only": r"it was not cleared",
    "test_a_full_clear_takes_many_steps": r"it was not cleared",
    "test_the_engine_clears_the_tokens_of_a_prompt": r"are left on the server",
    "test_the_engine_clears_everything_of_its_own": r"are left on the server",
}

SECONDS = 20.0
TOKENS = 16
LAYERS, WIDTH = 2, 32


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as running:
        running.client().set("of somebody else", b"value")
        yield running


@pytest.fixture
def rank(server: ValkeyServer) -> Iterator[Engine]:
    """A back end whose one key, 0, is on an otherwise foreign server."""
    server.client().flushall()
    with engine(f"{server.host}:{server.port}") as built:
        store(built, key(0))
        yield built


def store(rank: Engine, *keys: CacheEngineKey) -> None:
    for each in keys:
        value = rank.take(chunk(each.to_string(), rank.chunk_bytes))
        rank.backend.submit_put_task(each, value).result(SECONDS)


def names(server: ValkeyServer) -> set[str]:
    found: Any = server.client().keys("*")
    return {name.decode() for name in found}


def removed(rank: Engine, which: CacheEngineKey) -> bool:
    result: bool = within(SECONDS, "remove", lambda: rank.backend.remove(which))
    return result


def cleared(rank: Engine) -> int:
    """Return how many tokens the back end says it cleared."""
    clear = getattr(rank.backend, "clear", None)
    assert clear is not None, "it was not cleared: the back end cannot"
    result: int = within(SECONDS, "clear", clear)
    return result


def test_a_removed_key_is_gone_from_the_server(server: ValkeyServer, rank: Engine) -> None:
    store(rank, key(1))
    assert removed(rank, key(0)), "it was not removed"
    assert names(server) == {key(1).to_string()}


def test_a_key_that_is_not_there_is_not_removed(server: ValkeyServer, rank: Engine) -> None:
    before = deletes(server)
    assert removed(rank, key(7)) is False
    assert names(server) == {key(0).to_string()}
    assert deletes(server) == before + 1, "the back end's remove never got to the server"


def deletes(server: ValkeyServer) -> int:
    stats: Any = server.client().info("commandstats")
    calls: int = stats.get("cmdstat_del", {}).get("calls", 0)
    return calls


def test_another_rank_of_an_mla_model_removes_the_name_that_it_reads(
    server: ValkeyServer, rank: Engine
) -> None:
    rank.backend._mla_worker_id_as0_mode = True  # as on the ranks other than 0
    own = CacheEngineKey("model", 1, 3, 0, torch.bfloat16)
    assert rank.backend.contains(own)
    assert removed(rank, own), "it was not removed"
    assert names(server) == set()


def test_a_removed_key_is_promised_no_more_and_stored_again(
    server: ValkeyServer, rank: Engine
) -> None:
    server.client().set(key(1).to_string(), b"a chunk of another layout")
    within(SECONDS, "a load", lambda: rank.backend.batched_get_blocking([key(1)]))
    assert removed(rank, key(1)), "it was not removed"
    assert removed(rank, key(0))
    assert rank.backend.batched_contains([key(0), key(1)]) == 0
    store(rank, key(0))
    # By another process: this one has forgotten that the key was of no use.
    server.client().set(key(1).to_string(), chunk(1, rank.chunk_bytes))
    assert rank.backend.batched_contains([key(0), key(1)]) == 2


@pytest.mark.patched_only
def test_a_server_that_is_gone_removes_nothing() -> None:
    with ValkeyServer() as server, engine(f"{server.host}:{server.port}") as rank:
        store(rank, key(0))
        server.stop()
        assert removed(rank, key(0)) is False
        assert cleared(rank) == 0
        server.start()


# The glob characters are those of a model's name that SCAN would take for a pattern.
@pytest.mark.parametrize("model", ["model", "models/[a-z]*?^\\model"])
def test_a_full_clear_takes_this_rank_s_names_only(
    server: ValkeyServer, rank: Engine, model: str
) -> None:
    server.client().flushall()
    rank.backend.metadata.model_name = model
    own = [CacheEngineKey(model, 1, 0, index, torch.bfloat16) for index in range(5)]
    tagged = CacheEngineKey(model, 1, 0, 9, torch.bfloat16, {"lmcache.tag.user": "a"})
    store(rank, *own, tagged)
    foreign = [
        CacheEngineKey("model-2", 1, 0, 1, torch.bfloat16).to_string(),
        CacheEngineKey("models/x-model", 1, 0, 1, torch.bfloat16).to_string(),
        CacheEngineKey("models/bbb^\\model", 1, 0, 1, torch.bfloat16).to_string(),
        CacheEngineKey(model, 2, 0, 1, torch.bfloat16).to_string(),
        CacheEngineKey(model, 1, 1, 1, torch.bfloat16).to_string(),
        CacheEngineKey(model, 1, 0, 1, torch.float16).to_string(),
        f"{model}@1@0@",
        "anything",
    ]
    for name in foreign:
        server.client().set(name, b"value")
    server.client().set(f"{model}@1@0@1".encode() + b"\xff\xfe@half", b"value")
    assert cleared(rank) == 6 * rank.backend.config.chunk_size
    left: Any = server.client().keys("*")
    assert len(left) == len(foreign) + 1
    assert {name.decode(errors="replace") for name in left} >= set(foreign)


def test_a_full_clear_takes_many_steps(server: ValkeyServer, rank: Engine) -> None:
    values = {key(index).to_string(): b"value" for index in range(5000)}
    values |= {f"other-{index}": b"value" for index in range(5000)}
    server.client().mset(values)
    assert cleared(rank) == 5000 * rank.backend.config.chunk_size
    assert server.client().dbsize() == 5000


@pytest.fixture
def whole(server: ValkeyServer) -> Iterator[LMCacheEngine]:
    """An engine with a pool in front of the server: three prompts of four chunks in both."""
    server.client().flushall()
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=TOKENS,
        local_cpu=True,
        max_local_cpu_size=0.01,
        remote_url=f"resp://{server.host}:{server.port}",
        remote_serde="naive",
        save_unfull_chunk=False,
        lmcache_instance_id="remove",
        extra_config={"save_chunk_meta": False, "resp_num_threads": 2},
    )
    metadata = LMCacheMetadata(
        model_name="model",
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.bfloat16,
        kv_shape=(LAYERS, 1, TOKENS, 1, WIDTH),
        use_mla=True,
        chunk_size=TOKENS,
        role="worker",
    )
    built = LMCacheEngineBuilder.get_or_create(
        "remove", config, metadata, MockGPUConnector(metadata.kv_shape), alone, alone
    )
    built.post_init()
    for start in (0, 1000, 2000):
        built.store(prompt(start), req_id=str(start))
    wait_until(lambda: len(names(server)) == 12, SECONDS, "the chunks did not arrive")
    # Whoever clears the pool leaves chunks there that a store still holds.
    pooled = built.storage_manager.local_cpu_backend.hot_cache
    wait_until(
        lambda: len(pooled) == 12 and all(each.can_evict for each in pooled.values()),
        SECONDS,
        "the stores did not let go of the pool",
    )
    yield built
    # Not close(): on the pinned release it blocks its own loop.
    LMCacheEngineBuilder._instances.pop("remove")
    backend: Any = built.storage_manager.storage_backends["RemoteBackend"]
    built.storage_manager.loop.call_soon_threadsafe(
        backend.connection.getWrappedConnector().client.close
    )
    built.storage_manager.loop.call_soon_threadsafe(built.storage_manager.loop.stop)


def prompt(start: int) -> list[int]:
    return list(range(start, start + 4 * TOKENS))


def alone(value: Any, src: int) -> Any:
    """Broadcast in a group of one."""
    return value


def test_the_engine_clears_the_tokens_of_a_prompt(
    server: ValkeyServer, whole: LMCacheEngine
) -> None:
    within(SECONDS, "clear", lambda: whole.clear(tokens=prompt(1000)))
    left = names(server)
    assert len(left) == 8, f"{len(left)} chunks of 8 are left on the server"
    assert whole.lookup(tokens=prompt(1000)) == 0
    assert whole.lookup(tokens=prompt(2000)) == 4 * TOKENS


def test_the_engine_clears_everything_of_its_own(
    server: ValkeyServer, whole: LMCacheEngine
) -> None:
    server.client().set("of somebody else", b"value")
    tokens = within(SECONDS, "clear", whole.clear)
    left = names(server)
    assert left == {"of somebody else"}, f"{len(left) - 1} chunks are left on the server"
    # In the pool and on the server.
    assert tokens == 2 * 12 * TOKENS
    assert whole.lookup(tokens=prompt(0)) == 0


@pytest.mark.patched_only
def test_the_engine_clears_where_it_is_told_to(server: ValkeyServer, whole: LMCacheEngine) -> None:
    within(SECONDS, "clear", lambda: whole.clear(locations=["LocalCPUBackend"]))
    assert len(names(server)) == 12
    assert whole.lookup(tokens=prompt(0)) == 4 * TOKENS
