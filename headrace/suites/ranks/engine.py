"""A real LMCache engine as one rank of a prefill replica has it, with the device in host memory."""

from __future__ import annotations

import hashlib
import importlib.util
import struct
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata

from headrace.suites.ranks.settings import Settings


class PagedLatents(MockGPUConnector):  # type: ignore[misc]  # lmcache has no types
    """Copies between chunks and pages of latents, slot by slot, as the device's kernels do."""

    def batched_from_gpu(
        self, memory_objs: Sequence[Any], starts: Sequence[int], ends: Sequence[int], **kwargs: Any
    ) -> None:
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            slots = kwargs["slot_mapping"][start:end]
            for layer, pages in enumerate(kwargs["kvcaches"]):
                memory_obj.tensor[0, layer].copy_(pages.view(-1, pages.shape[-1])[slots])

    def batched_to_gpu(
        self, memory_objs: Sequence[Any], starts: Sequence[int], ends: Sequence[int], **kwargs: Any
    ) -> None:
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            slots = kwargs["slot_mapping"][start:end]
            for layer, pages in enumerate(kwargs["kvcaches"]):
                pages.view(-1, pages.shape[-1])[slots] = memory_obj.tensor[0, layer]


def build_engine(settings: Settings, rank: int, world: int) -> Any:
    """Return an engine that has not had its post_init."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=settings.chunk_size,
        local_cpu=settings.local_cpu,
        max_local_cpu_size=settings.cpu_bytes / 2**30,
        save_unfull_chunk=False,
        remote_url=_url(settings, rank) or None,
        remote_serde="naive",
        blocking_timeout_secs=settings.blocking_seconds,
        enable_async_loading=settings.asynchronous,
        pre_caching_hash_algorithm="sha256_cbor",
        lmcache_instance_id=f"rank-{rank}",
        extra_config={
            "save_chunk_meta": False,
            "resp_num_threads": 2,
            **({"pcp_shard_store": True} if settings.sharded else {}),
            **settings.extra,
        },
        **settings.config,
    )
    shape = settings.shape
    told = settings.world or world
    metadata = LMCacheMetadata(
        model_name="model",
        world_size=told,
        local_world_size=told,
        worker_id=rank,
        local_worker_id=rank,
        kv_dtype=torch.bfloat16,
        kv_shape=(shape.layers, 1, shape.chunk_size, 1, shape.hidden),
        use_mla=True,
        role="worker",
        chunk_size=shape.chunk_size,
        engine_id="replica",
    )
    alone = settings.broadcast == "pcp"
    return LMCacheEngineBuilder.get_or_create(
        f"rank-{rank}",
        config,
        metadata,
        PagedLatents(metadata.kv_shape),
        _keep if alone else _broadcast,
        _keep if alone else _broadcast_object,
    )


def _url(settings: Settings, rank: int) -> str:
    # The release has no {rank}. It gets what it would need, so that what is seen of it is not
    # that alone.
    if importlib.util.find_spec("lmcache.v1.remote_url") and settings.sharded:
        return settings.url
    return settings.url.replace("{rank}", str(rank))


def _keep(value: Any, _source: int) -> Any:
    return value


def _broadcast(tensor: torch.Tensor, source: int) -> torch.Tensor:
    dist.broadcast(tensor, source)
    return tensor


def _broadcast_object(value: Any, source: int) -> Any:
    box = [value]
    dist.broadcast_object_list(box, source)
    return box[0]


def stand_in_for_vllm(*, with_hash: bool) -> None:
    """Put in place what LMCache imports from vLLM for its hashes.

    The hash that every chain of chunks begins with is the hash of a text, as vLLM's is: Python's
    own hash of that differs from process to process. Without `with_hash` LMCache does not find
    `sha256_cbor`, and falls back to Python's without a word that a test would see.
    """
    utils = ModuleType("vllm.v1.core.kv_cache_utils")

    def init_none_hash(function: Callable[[Any], Any]) -> None:
        vars(utils)["NONE_HASH"] = function("the hash before the first chunk")

    vars(utils)["init_none_hash"] = init_none_hash
    core = ModuleType("vllm.v1.core")
    vars(core)["kv_cache_utils"] = utils
    hashing = ModuleType("vllm.utils.hashing")
    if with_hash:
        vars(hashing)["sha256_cbor"] = _sha256_cbor
        vars(hashing)["get_hash_fn_by_name"] = _hash_by_name
    for module in (utils, core, hashing):
        sys.modules[module.__name__] = module


def _hash_by_name(name: str) -> Any:
    if name != "sha256_cbor":
        raise ValueError(f"Unsupported hash function: {name}")
    return _sha256_cbor


def _sha256_cbor(value: Any) -> bytes:
    return hashlib.sha256(_cbor(value)).digest()


def _cbor(value: Any) -> bytes:
    """Encode what a chunk's hash is made of: tuples, texts, integers of at most 64 bits."""
    if isinstance(value, str):
        return _cbor_head(3, len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return _cbor_head(4, len(value)) + b"".join(map(_cbor, value))
    return _cbor_head(0, value) if value >= 0 else _cbor_head(1, -1 - value)


def _cbor_head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes([major << 5 | value])
    for code, width in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
        if value < 1 << 8 * struct.calcsize(width):
            return bytes([major << 5 | code]) + struct.pack(width, value)
    raise ValueError(f"{value} has more than 64 bits")
