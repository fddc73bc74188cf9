"""The ranks of a pod share its CPU memory, whoever asks for the size."""

from __future__ import annotations

import pytest
from lmcache.v1.pcp_shard.budget import agreed_share_gb, check_longest_prompt, local_cpu_gb
from lmcache.v1.pcp_shard.settings import ShardSettingsError
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

from tests.patches.lmcache.shard_ranks import TOKENS, WIDTH, shard_config, shard_metadata

pytestmark = pytest.mark.patched_only(reason="stock has no sharded store")

STOCK_REASONS: dict[str, str] = {}

MIB = 1 / 1024
CHUNK_BYTES = 2 * TOKENS * WIDTH * 2
PAGE = 4096


def test_the_shares_of_a_pod_add_up() -> None:
    assert agreed_share_gb(8.0, [100.0] * 8, 0.0) == 1.0


def test_the_share_leaves_the_reserve_free() -> None:
    assert agreed_share_gb(8.0, [6.0, 5.0, 0.0, 6.0], 1.0) == 1.0


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ShardSettingsError, match=r"pcp_shard_store.* reserve_local_cpu_size=5"):
        agreed_share_gb(8.0, [4.0, 4.0], 5.0)


def test_a_pool_that_cannot_hold_the_longest_prompt_is_refused() -> None:
    exactly = 3 * PAGE / 1024**3
    check_longest_prompt(exactly, 4, 12, PAGE)
    check_longest_prompt(exactly, 4, 9, PAGE)
    with pytest.raises(ShardSettingsError, match=r"pcp_shard_store.* max_local_cpu_size"):
        check_longest_prompt(exactly, 4, 13, PAGE)


@pytest.mark.parametrize("rank", [0, 3])
def test_every_reader_of_the_size_gets_the_share(rank: int) -> None:
    config = shard_config(
        max_local_cpu_size=8 * MIB,
        reserve_local_cpu_size=0.0,
        extra_config={"first_rank_max_local_cpu_size": 64 * MIB},
    )
    metadata = shard_metadata(rank, 4, local_cpu_share_gb=1 * MIB)
    backend = LocalCPUBackend(config, metadata, dst_device="cpu")
    assert backend.memory_allocator.size == 1024**2
    assert backend.calculate_chunk_budget() == 1024**2 // PAGE
    assert local_cpu_gb(config, metadata) == 1 * MIB


def test_the_share_is_that_of_the_configured_size_until_the_ranks_agree() -> None:
    assert local_cpu_gb(shard_config(max_local_cpu_size=8.0), shard_metadata(1, 4)) == 2.0


def test_without_the_sharded_store_the_size_is_as_configured() -> None:
    config = shard_config(max_local_cpu_size=8.0, extra_config={"pcp_shard_store": False})
    assert local_cpu_gb(config, shard_metadata(1, 4, local_cpu_share_gb=1.0)) == 8.0
    assert local_cpu_gb(config, None) == 8.0
