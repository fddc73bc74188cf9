"""`{rank}` in the url of a remote store: each rank has an instance of its own, wherever the url is
read, and a url that no rank can use fails the start instead of leaving a rank without a store.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lmcache.usage_telemetry.messages import EngineMessage
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.health_monitor.checks.remote_backend_check import RemoteBackendHealthCheck
from lmcache.v1.manager import LMCacheManager
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import CreateConnector, redis_connector

from tests.patches.lmcache.deadline import within
from tests.patches.lmcache.engine import engine
from tests.patches.lmcache.loops import LoopThread

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_each_rank_asks_its_own_instance": r"no connection to|rank 0 asked valkey-\{rank\}",
    "test_whatever_reads_the_url_reads_the_ranks": r"asked redis://valkey-\{rank\}:6379",
    "test_a_url_that_no_rank_can_use_fails_the_start": r"the start did not fail",
}

SECONDS = 30.0
WORLD = 8
SHARDED: dict[str, Any] = {"pcp_shard_store": True}
KV_SHAPE = (1, 1, 4, 1, 512)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the address of every client that is made, as they are made."""
    made: list[str] = []

    def resp_client(host: str, port: int, *_: object, **__: object) -> SimpleNamespace:
        made.append(f"resp://{host}:{port}")
        return SimpleNamespace(close=lambda: None)

    def redis_client(url: str, **_: object) -> SimpleNamespace:
        made.append(url)
        return SimpleNamespace()

    monkeypatch.setattr(redis_connector, "RESPClient", resp_client)
    monkeypatch.setattr(redis_connector, "RedisConnector", redis_client)
    return made


# The default deployment's own form is the first.
@pytest.mark.parametrize(
    ("address", "instance"),
    [
        ("valkey-{rank}:6379", lambda rank: f"valkey-{rank}:6379"),
        ("valkey:637{rank}", lambda rank: f"valkey:637{rank}"),
        ("name:p{a}ss@valkey-{rank}:637{rank}", lambda rank: f"valkey-{rank}:637{rank}"),
    ],
)
def test_each_rank_asks_its_own_instance(
    asked: list[str], address: str, instance: Callable[[int], str]
) -> None:
    for rank in range(WORLD):
        with engine(address, rank=rank, world=WORLD, **SHARDED) as built:
            wanted = f"resp://{instance(rank)}"
            assert asked[-1] == wanted, f"rank {rank} asked {asked[-1].partition('//')[2]}"
            # A connection that was lost is made again.
            built.backend.connection = None
            built.backend.init_connection()
            assert asked[-2:] == [wanted] * 2
            assert "{rank}" not in str(RemoteBackendHealthCheck(built.backend))


@pytest.mark.parametrize("reader", ["audit", "deprecated audit", "plugin", "plugin's own", "usage"])
def test_whatever_reads_the_url_reads_the_ranks(
    asked: list[str], storage_loop: LoopThread, reader: str
) -> None:
    url = "redis://valkey-{rank}:6379"
    extra: dict[str, Any] = {**SHARDED, "save_chunk_meta": False}
    settings: dict[str, Any] = {"remote_url": url}
    own = "audit://here:1" if "audit" in reader else "plugin://redis"
    if reader == "audit":
        extra["audit_actual_remote_url"] = url
    if reader == "deprecated audit":
        settings["audit_actual_remote_url"] = url
    if reader == "plugin's own":
        extra["remote_storage_plugin.redis.redis_url"] = url
    config, metadata = configured(extra, **settings), rank_of(3)
    if reader == "usage":
        asked.append(str(EngineMessage.from_config(config, metadata).remote_url))
    else:
        CreateConnector(
            own, storage_loop.loop, None, config, metadata,
            plugin_name=None if "audit" in reader else "redis",
        )  # fmt: skip
    assert asked[-1] == "redis://valkey-3:6379", f"asked {asked[-1]}"


@pytest.mark.parametrize(
    ("setting", "url", "extra", "reason"),
    [
        ("remote_url", "resp://valkey-{rank}:6379", {}, "without the sharded store"),
        (
            "remote_url",
            "resp://valkey:637{rank}",
            {"pcp_shard_store": False},
            "without the sharded",
        ),
        ("remote_url", "resp://valkey-{rank}:1", {"pcp_shard_store": "off"}, "without the sharded"),
        ("remote_url", "resp://me:secret@valkey-{Rank}:1", SHARDED, r"found {Rank}"),
        ("remote_url", "resp://valkey-{}:6379", SHARDED, "found {}"),
        ("remote_url", "resp://valkey:637{world}", {}, "found {world}"),
        ("remote_url", "resp://valkey:637{rank", SHARDED, "found {rank"),
        ("remote_url", "resp://valkey:6379/{rank}/{model}", SHARDED, "found {model}"),
        ("audit_actual_remote_url", "resp://valkey:637{rank}", {}, "without the sharded store"),
    ],
)
def test_a_url_that_no_rank_can_use_fails_the_start(
    setting: str, url: str, extra: dict[str, Any], reason: str
) -> None:
    config = configured(extra, **{setting: url})
    error = within(SECONDS, "the start", lambda: why_not(config))
    assert error, "the start did not fail"
    assert error.startswith(f"RefusedSettingsError: {setting}: expected no"), error
    assert reason in error
    assert "secret" not in error


@pytest.mark.patched_only(reason="stock has nothing to refuse")
def test_a_refusal_after_the_start_of_the_workers_is_one_too() -> None:
    from lmcache.v1.exceptions import RefusedSettingsError

    engine_in_start, manager = started(configured({}))
    reasons: list[Exception] = [ValueError("broken"), RefusedSettingsError("no")]
    for reason in reasons:

        def fail(reason: Exception = reason, **_: object) -> None:
            raise reason

        engine_in_start.post_init = fail
        try:
            manager.post_init()
        except RefusedSettingsError as error:
            assert error is reason
        else:
            assert not isinstance(reason, RefusedSettingsError), "the start did not fail"
        manager._init_failed = False


@pytest.mark.patched_only(reason="holds on stock; the patch must not change it")
def test_a_url_without_placeholders_stays_as_it_is(asked: list[str]) -> None:
    for extra in ({}, SHARDED):
        for rank in range(2):
            with engine("me:p{a}ss@valkey:6379", rank=rank, world=2, **extra) as built:
                assert asked[-1] == "resp://valkey:6379"
                assert built.backend.remote_url == "resp://me:p{a}ss@valkey:6379"


def configured(extra: dict[str, Any], **settings: Any) -> Any:
    return LMCacheEngineConfig.from_defaults(
        chunk_size=4, local_cpu=False, max_local_cpu_size=0.001, save_unfull_chunk=False,
        pre_caching_hash_algorithm="sha256_cbor",
        extra_config=dict(extra), **settings,
    )  # fmt: skip


def rank_of(rank: int) -> Any:
    return LMCacheMetadata(
        model_name="model", world_size=WORLD, local_world_size=WORLD, worker_id=rank,
        local_worker_id=rank, kv_dtype=torch.bfloat16, kv_shape=KV_SHAPE, use_mla=True,
        chunk_size=4, role="worker", engine_id="engine",
    )  # fmt: skip


def started(config: Any) -> tuple[Any, Any]:
    """Start an engine as an inference server does, through the manager of its services."""
    name = f"engine {id(config)}"

    class Factory:
        def get_or_create_metadata(self) -> Any:
            return rank_of(1)

        def get_or_create_lmcache_engine(self) -> Any:
            return LMCacheEngineBuilder.get_or_create(
                name, config, rank_of(1), MockGPUConnector(KV_SHAPE), lambda t, s: t, lambda o, s: o
            )

        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda **options: None

    manager = LMCacheManager(config, Factory())
    return manager.lmcache_engine, manager


def why_not(config: Any) -> str:
    """Return the error that ends the start, "" if none does."""
    try:
        _, manager = started(config)
        manager.post_init()
    except Exception as error:  # noqa: BLE001 - whatever it is ends the start
        return f"{type(error).__name__}: {error}"
    return ""
