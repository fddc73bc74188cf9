"""What the ranks of a sharded store tell vLLM, and what they take from it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lmcache.v1.pcp_shard.settings import ShardSettingsError

from tests.patches.lmcache.shard_ranks import shard_config
from tests.patches.lmcache.stand_in_vllm import made_up_vllm

pytestmark = pytest.mark.patched_only(reason="stock has no sharded store")

STOCK_REASONS: dict[str, str] = {}

CHUNK = 256
BLOCK = 16
TOKENS = 4 * CHUNK


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> Iterator[None]:
    with made_up_vllm():
        yield


@pytest.fixture
def vllm_v1_adapter() -> Any:
    """LMCache's adapter module, with made up modules of vLLM."""
    return importlib.import_module("lmcache.integration.vllm.vllm_v1_adapter")


class Unmovable(torch.Tensor):
    """A slot mapping that does not fit onto the device."""

    def to(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")


class Adapter:
    """A worker's adapter around an engine that loads `loaded` tokens of each request."""

    def __init__(self, module: Any, *, pcp_shard: bool, loaded: int, computed: int) -> None:
        self.called: list[dict[str, Any]] = []
        self.loaded = loaded
        metadata = module.LMCacheConnectorMetadata()
        slots = torch.arange(TOKENS)
        self.request = SimpleNamespace(
            req_id="request",
            token_ids=list(range(TOKENS)),
            slot_mapping=slots,
            request_configs=None,
            load_spec=module.LoadSpec(computed, TOKENS, True),
        )
        metadata.requests = [self.request]
        self.under_test = adapter = object.__new__(module.LMCacheConnectorV1Impl)
        adapter._pcp_shard = pcp_shard
        adapter._manager = SimpleNamespace(lmcache_engine=self)
        adapter._parent = SimpleNamespace(_get_connector_metadata=lambda: metadata)
        adapter._stats_monitor = module.LMCStatsMonitor.GetOrCreate()
        adapter._lmcache_chunk_size = CHUNK
        adapter._block_size = BLOCK
        adapter._invalid_block_ids = set()
        adapter.kv_caches = {"layer": torch.zeros(1)}
        adapter.use_layerwise = False
        adapter.device = "cpu"

    def retrieve(self, tokens: list[int], mask: torch.Tensor, **call: Any) -> torch.Tensor:
        self.called.append(call)
        loaded = torch.zeros(len(tokens), dtype=torch.bool)
        loaded[int((~mask).sum()) : self.loaded] = True
        return loaded

    def start_load(self, attn_metadata: Any = "some") -> set[int]:
        """Load; return the blocks that are reported as failed."""
        self.under_test.start_load_kv(SimpleNamespace(attn_metadata=attn_metadata))
        failed: set[int] = self.under_test.get_block_ids_with_load_errors()
        return failed


def blocks(begin: int, end: int) -> set[int]:
    return set(range(begin // BLOCK, end // BLOCK))


@pytest.mark.parametrize("computed", [0, CHUNK, CHUNK + 48, 2 * CHUNK - BLOCK])
def test_what_vllm_has_computed_is_not_reported_as_failed(
    vllm_v1_adapter: Any, computed: int
) -> None:
    began = computed // CHUNK * CHUNK
    nothing = Adapter(vllm_v1_adapter, pcp_shard=True, loaded=began, computed=computed)
    assert nothing.start_load() == blocks(computed, TOKENS)
    short = Adapter(vllm_v1_adapter, pcp_shard=True, loaded=3 * CHUNK, computed=computed)
    assert short.start_load() == blocks(3 * CHUNK, TOKENS)
    everything = Adapter(vllm_v1_adapter, pcp_shard=True, loaded=TOKENS, computed=computed)
    assert everything.start_load() == set()


def test_without_the_sharded_store_the_report_is_as_it_was(vllm_v1_adapter: Any) -> None:
    plain = Adapter(vllm_v1_adapter, pcp_shard=False, loaded=CHUNK, computed=CHUNK + 48)
    assert plain.start_load() == blocks(CHUNK, TOKENS)


def test_the_scheduler_alone_decides_whether_a_rank_loads(vllm_v1_adapter: Any) -> None:
    sharded = Adapter(vllm_v1_adapter, pcp_shard=True, loaded=TOKENS, computed=0)
    sharded.start_load(attn_metadata=None)
    assert len(sharded.called) == 1
    plain = Adapter(vllm_v1_adapter, pcp_shard=False, loaded=TOKENS, computed=0)
    plain.start_load(attn_metadata=None)
    assert not plain.called


def test_a_full_device_does_not_keep_a_rank_from_the_load(vllm_v1_adapter: Any) -> None:
    adapter = Adapter(vllm_v1_adapter, pcp_shard=True, loaded=TOKENS, computed=0)
    adapter.request.slot_mapping = adapter.request.slot_mapping.as_subclass(Unmovable)
    adapter.start_load()
    assert len(adapter.called) == 1


class Factory:
    """A service factory on a model of one layer."""

    def __init__(self, role: str, **parallel: int) -> None:
        module = importlib.import_module("lmcache.integration.vllm.vllm_service_factory")
        model = SimpleNamespace(
            model="model",
            dtype=torch.bfloat16,
            use_mla=True,
            max_model_len=1000,
            served_model_name="model",
            get_num_layers=lambda parallel: 1,
            get_num_kv_heads=lambda parallel: 1,
            get_head_size=lambda: 576,
        )
        sizes = {
            "world_size": 2,
            "rank": 0,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "prefill_context_parallel_size": 2,
            "decode_context_parallel_size": 1,
            **parallel,
        }
        vllm = SimpleNamespace(
            model_config=model,
            parallel_config=SimpleNamespace(**sizes),
            cache_config=SimpleNamespace(cache_dtype="auto"),
            kv_transfer_config=None,
            speculative_config=None,
        )
        self.under_test = module.VllmServiceFactory(shard_config(), vllm, role)


@pytest.fixture
def _kv_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_utils = importlib.import_module("vllm.utils.torch_utils")
    monkeypatch.setattr(torch_utils, "get_kv_cache_torch_dtype", lambda *_: torch.bfloat16)


@pytest.mark.usefixtures("_kv_dtype")
def test_the_longest_prompt_is_the_models() -> None:
    metadata = Factory("scheduler").under_test.get_or_create_metadata()
    assert metadata.longest_prompt == 1000
    assert "longest_prompt" not in repr(metadata) and "share" not in repr(metadata)


@pytest.mark.usefixtures("_kv_dtype")
@pytest.mark.parametrize(
    "parallel",
    [{"pipeline_parallel_size": 2, "world_size": 4}, {"decode_context_parallel_size": 2}],
)
def test_the_factory_refuses_what_the_ranks_do_not_share(parallel: dict[str, int]) -> None:
    with pytest.raises(ShardSettingsError, match=next(iter(parallel))):
        Factory("scheduler", **parallel).under_test.get_or_create_metadata()
