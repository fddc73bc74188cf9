"""The sharded store refuses settings that it cannot work with, and names both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.exceptions import RefusedSettingsError
from lmcache.v1.pcp_shard.settings import (
    ShardSettingsError,
    check_parallelism,
    check_settings,
    is_enabled,
)

from tests.patches.lmcache.shard_ranks import shard_config, shard_metadata

pytestmark = pytest.mark.patched_only(reason="stock has no sharded store")

STOCK_REASONS: dict[str, str] = {}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"use_layerwise": True}, "use_layerwise"),
    ({"enable_blending": True}, "enable_blending"),
    ({"save_unfull_chunk": True}, "save_unfull_chunk"),
    ({"pre_caching_hash_algorithm": "builtin"}, "pre_caching_hash_algorithm=builtin"),
    ({"pre_caching_hash_algorithm": "xxhash"}, "pre_caching_hash_algorithm=xxhash"),
    ({"enable_pd": True}, "enable_pd"),
    ({"enable_p2p": True}, "enable_p2p"),
    ({"maru_path": "/maru"}, "maru_path"),
    ({"external_lookup_client": "mooncakestore://nowhere"}, "external_lookup_client"),
    ({"enable_scheduler_bypass_lookup": True}, "enable_scheduler_bypass_lookup"),
    ({"lookup_server_worker_ids": [0]}, "lookup_server_worker_ids=[0]"),
    ({"lookup_server_worker_ids": [0, 2]}, "lookup_server_worker_ids=[0, 2]"),
    ({"extra_config": {"pcp_shard_timeout_secs": 2}}, "pcp_shard_timeout_secs=2"),
    ({"enable_controller": True, "lmcache_worker_ids": [0]}, "lmcache_worker_ids=[0]"),
]


@pytest.mark.parametrize(("settings", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_setting_that_cannot_work_is_refused(settings: dict[str, Any], named: str) -> None:
    config = shard_config(remote_url="resp://nowhere:1", **settings)
    with pytest.raises(ShardSettingsError) as refusal:
        check_settings(config, shard_metadata())
    assert "pcp_shard_store" in str(refusal.value) and named in str(refusal.value)
    config.extra_config["pcp_shard_store"] = False
    check_settings(config, shard_metadata())


def test_kv_that_the_ranks_do_not_share_is_refused() -> None:
    with pytest.raises(ShardSettingsError, match=r"pcp_shard_store.* use_mla"):
        check_settings(shard_config(), shard_metadata(use_mla=False))


def test_the_engine_is_not_built_with_refused_settings() -> None:
    config = shard_config(enable_blending=True)
    with pytest.raises(RefusedSettingsError, match="enable_blending"):
        LMCacheEngineBuilder.get_or_create(
            "refused", config, shard_metadata(), None, lambda *_: None, lambda *_: None
        )


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"decode_context_parallel_size": 4}, "decode_context_parallel_size=4"),
        ({"world_size": 6}, "world_size=6"),
    ],
)
def test_ranks_that_do_not_hold_the_same_kv_are_refused(layout: dict[str, int], named: str) -> None:
    parallel = SimpleNamespace(**{**PARALLEL, **layout})
    with pytest.raises(ShardSettingsError) as refusal:
        check_parallelism(shard_config(), parallel)
    assert "pcp_shard_store" in str(refusal.value) and named in str(refusal.value)
    check_parallelism(LMCacheEngineConfig.from_defaults(), parallel)


PARALLEL = {
    "pipeline_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "prefill_context_parallel_size": 4,
    "tensor_parallel_size": 2,
    "world_size": 8,
}


def test_all_ranks_of_both_context_and_tensor_parallelism_share() -> None:
    check_parallelism(shard_config(), SimpleNamespace(**PARALLEL))


@pytest.mark.parametrize("value", [True, 1, "true", "on"])
def test_what_turns_it_on(value: object) -> None:
    assert is_enabled(shard_config(extra_config={"pcp_shard_store": value}))


@pytest.mark.parametrize("value", [False, 0, "false", "off", None])
def test_what_leaves_it_off(value: object) -> None:
    assert not is_enabled(shard_config(extra_config={"pcp_shard_store": value}))


@pytest.mark.parametrize("value", ["treu", 2, 0.5])
def test_what_is_neither_is_refused(value: object) -> None:
    with pytest.raises(ShardSettingsError, match=r"pcp_shard_store=.* neither true nor false"):
        is_enabled(shard_config(extra_config={"pcp_shard_store": value}))


def test_it_is_off_by_default() -> None:
    assert not is_enabled(LMCacheEngineConfig.from_defaults())


def test_every_rank_answers_lookups_and_runs_a_worker() -> None:
    config = shard_config()
    assert config.get_lookup_server_worker_ids(True, 3) == [0, 1, 2]
    assert config.get_lmcache_worker_ids(True, 3) == [0, 1, 2]
    config.extra_config["pcp_shard_store"] = False
    assert config.get_lookup_server_worker_ids(True, 3) == [0]
    assert config.get_lmcache_worker_ids(True, 3) == [0]
