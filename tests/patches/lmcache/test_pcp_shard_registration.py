"""The ranks of a sharded store start together or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.manager import LMCacheManager
from lmcache.v1.pcp_shard import registration
from lmcache.v1.pcp_shard.registration import (
    Registration,
    ShardRegistrationError,
    differences,
    facts,
    initialize_on_all_ranks,
    register,
    report_failure,
)
from lmcache.v1.pcp_shard.sharded_store import ShardedStore
from lmcache.v1.pcp_shard.transport import Transport
from lmcache.v1.token_database import ChunkedTokenDatabase

from tests.patches.lmcache.shard_ranks import (
    Rank,
    ThreadNetwork,
    ThreadTransport,
    on_all,
    ranks,
    shard_config,
    shard_metadata,
)

pytestmark = pytest.mark.patched_only(reason="stock has no sharded store")

STOCK_REASONS: dict[str, str] = {}


def facts_of(rank: int, version: str = "0.5.5", **fields: Any) -> dict[str, str]:
    settings = {k: v for k, v in fields.items() if hasattr(LMCacheEngineConfig.from_defaults(), k)}
    config = shard_config(**settings)
    about = {k: v for k, v in fields.items() if k not in settings}
    metadata = shard_metadata(rank, **about)
    told: dict[str, str] = facts(config, metadata, ChunkedTokenDatabase(config, metadata), version)
    return told


def registrations(**of_rank_1: Any) -> list[Registration]:
    return [
        Registration(rank, facts=facts_of(rank, **(of_rank_1 if rank == 1 else {})))
        for rank in range(3)
    ]


def test_ranks_that_are_alike_do_not_differ() -> None:
    assert differences(registrations()) == []
    assert differences(registrations(remote_url="resp://another:1", lmcache_instance_id="b")) == []


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"version": "0.5.6"}, "LMCache's version"),
        ({"chunk_size": 8}, "chunk_size"),
        ({"kv_shape": (3, 1, 4, 1, 8)}, "layout"),
        ({"model_name": "other"}, "model"),
        ({"world_size": 8}, "world_size"),
        ({"longest_prompt": 9}, "the longest prompt"),
        ({"max_local_cpu_size": 3.0}, "max_local_cpu_size"),
        ({"cache_policy": "FIFO"}, "cache_policy"),
        ({"blocking_timeout_secs": 2}, "blocking_timeout_secs"),
        ({"pre_caching_hash_algorithm": "sha256_cbor_64bit"}, "pre_caching_hash_algorithm"),
        ({"extra_config": {"pcp_shard_timeout_secs": 99}}, "pcp_shard_timeout_secs"),
    ],
)
def test_a_difference_names_the_fact_and_the_ranks(change: dict[str, Any], fact: str) -> None:
    [problem] = differences(registrations(**change))
    assert problem.startswith(f"{fact} is ")
    assert "on ranks 0, 2" in problem and "on rank 1" in problem


def test_another_seed_of_the_hashes_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = registrations()
    monkeypatch.setattr(ChunkedTokenDatabase, "_get_init_hash", lambda database: 17)
    alike[2] = Registration(2, facts=facts_of(2))
    problems = "; ".join(differences(alike))
    assert "the seed of the chunk hashes is" in problems and "17 on rank 2" in problems


def test_workers_that_are_not_those_of_the_group_are_refused() -> None:
    assert differences([Registration(0), Registration(2)]) == [
        "the workers of the group are [0, 2]"
    ]


def group_of(world: int = 3) -> list[ThreadTransport]:
    network = ThreadNetwork(world)
    return [ThreadTransport(network, rank) for rank in range(world)]


def on_each(group: list[ThreadTransport], call: Any) -> list[Any]:
    return on_all(group, call)


def refusals(outcomes: list[Any]) -> str:
    """Return the one message with which all ranks refuse."""
    assert all(isinstance(each, ShardRegistrationError) for each in outcomes), outcomes
    [message] = {str(each) for each in outcomes}
    return message


def test_a_difference_refuses_the_start_of_all_ranks() -> None:
    of_all = registrations(chunk_size=8)
    outcomes = on_each(group_of(), lambda each: register(each, of_all[each.rank]))
    message = refusals(outcomes)
    assert "pcp_shard_store" in message
    assert "chunk_size is 4 on ranks 0, 2 but 8 on rank 1" in message


def test_a_rank_that_cannot_initialize_refuses_the_start_of_all_ranks() -> None:
    def initialize(rank: int) -> None:
        if rank == 2:
            raise MemoryError("no pinned memory")

    outcomes = on_each(
        group_of(),
        lambda each: initialize_on_all_ranks(each, lambda: initialize(each.rank)),
    )
    assert "rank 2 is not initialized: MemoryError: no pinned memory" in refusals(outcomes)
    assert isinstance(outcomes[2].__cause__, MemoryError)


def test_a_rank_without_an_engine_refuses_the_start_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_of()
    monkeypatch.setattr(
        registration, "connect", lambda config, metadata, device: group[metadata.worker_id]
    )

    def start(each: ThreadTransport) -> None:
        if each.rank == 1:
            report_failure(shard_config(), shard_metadata(1), "no such model")
        register(each, Registration(each.rank))

    assert "rank 1 is not initialized: no such model" in refusals(on_each(group, start))


def test_a_rank_that_never_comes_refuses_the_start_of_the_others() -> None:
    group = group_of()
    group[0].network.barrier.abort()
    outcomes = on_each(group, lambda each: register(each, Registration(each.rank)))
    assert "not all ranks registered" in str(outcomes[0])
    assert all(isinstance(each, ShardRegistrationError) for each in outcomes)


def test_a_degraded_manager_refuses_to_start() -> None:
    def broken() -> None:
        raise OSError("no such model")

    factory = SimpleNamespace(
        get_or_create_metadata=lambda: shard_metadata(0, 1), get_or_create_lmcache_engine=broken
    )
    manager = LMCacheManager(shard_config(), factory)
    with pytest.raises(
        ShardRegistrationError, match="rank 0 is not initialized: OSError: no such model"
    ):
        manager.post_init()
    off = shard_config(extra_config={"pcp_shard_store": False})
    LMCacheManager(off, factory).post_init()


def test_a_manager_whose_engine_fails_late_refuses_to_start() -> None:
    def broken(**_: Any) -> None:
        raise OSError("no storage")

    engine = SimpleNamespace(post_init=broken, mark_init_failed=lambda reason: None)
    factory = SimpleNamespace(
        get_or_create_metadata=lambda: shard_metadata(0, 1),
        get_or_create_lmcache_engine=lambda: engine,
        maybe_create_lookup_client=lambda: None,
        maybe_create_lookup_server=lambda: None,
        maybe_create_offload_server=lambda: None,
        maybe_create_runtime_plugin_launcher=lambda: None,
        maybe_create_internal_api_server=lambda lmcache_manager: None,
    )
    with pytest.raises(OSError, match="no storage"):
        LMCacheManager(shard_config(), factory).post_init()
    off = shard_config(extra_config={"pcp_shard_store": False})
    LMCacheManager(off, factory).post_init()


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> list[Rank]:
    """Three ranks before their registration."""
    group = ranks(max_local_cpu_size=3.0, reserve_local_cpu_size=0.0)
    monkeypatch.setattr(
        registration,
        "connect",
        lambda config, metadata, device: group[metadata.worker_id].transport,
    )
    for rank in group:
        rank.store._engine.fmt = rank.store.staging._fmt
        del rank.store.staging
    return group


def start(rank: Rank, initialize: Any = lambda: None) -> ShardedStore:
    rank.store.start(initialize)
    return rank.store


def test_registered_ranks_have_staging_and_one_share(starting: list[Rank]) -> None:
    order: list[str] = []
    stores = on_all(starting, lambda rank: start(rank, lambda: order.append("initialized")))
    assert order == ["initialized"] * 3
    for store in stores:
        assert len(store.staging.memory_objs) == 2
        assert store._engine.metadata.local_cpu_share_gb <= 1.0
    assert len({store._engine.metadata.local_cpu_share_gb for store in stores}) == 1


def test_nothing_is_initialized_before_the_ranks_know_that_they_are_alike(
    starting: list[Rank],
) -> None:
    starting[1].store._engine.config.cache_policy = "FIFO"
    outcomes = on_all(starting, lambda rank: start(rank, lambda: pytest.fail("initialized")))
    assert "cache_policy is LRU on ranks 0, 2 but FIFO on rank 1" in refusals(outcomes)


def test_a_share_too_small_for_the_longest_prompt_refuses_on_all_ranks(
    starting: list[Rank],
) -> None:
    for rank in starting:
        rank.store._engine.config.max_local_cpu_size = 3 * 4096 / 1024**3
        rank.store._engine.metadata.longest_prompt = 4 * 4
    outcomes = on_all(starting, start)
    assert all("max_local_cpu_size" in str(each) for each in outcomes), outcomes


def test_one_rank_alone_needs_no_group() -> None:
    transport = Transport.create(0, 1, 1.0, None)
    assert register(transport, Registration(0)) == [Registration(0)]
