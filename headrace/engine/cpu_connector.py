"""LMCache's in-process connector on vLLM's CPU platform.

LMCache copies KV between its chunks and vLLM's paged cache with a "GPU connector", has none for
the CPU, and then runs without a cache. This module has one. vLLM loads it by name:

    --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1CPU", "kv_role": "kv_both",
                           "kv_connector_module_path": "headrace.engine.cpu_connector"}'

vLLM's CPU attention packs the keys of a block for the processor's instructions, so a token has
no rows of its own in it. Only whole blocks are copied, as they lie: a chunk is a number of
whole blocks, and nothing else is stored (`save_unfull_chunk: false`). The latent cache of MLA
is laid out token by token, but whole blocks of it are copied in the same way.

Whoever loads this module also gets latent attention whose memory does not grow with the square of
a prompt's length; see `cpu_prefill`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lmcache.v1.gpu_connector as factories
import torch
from lmcache.utils import EngineType
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from lmcache.v1.memory_management import MemoryFormat
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1
from vllm.v1.attention.backends.mla.prefill.cpu_sdpa import CPUSDPAMLAPrefillBackend

from headrace.engine.cpu_prefill import attention_by_rows

_create_for_other_devices = factories.CreateGPUConnector


class CpuBlockConnector(GPUConnectorInterface):  # type: ignore[misc]  # lmcache has no types
    """Copies whole blocks between LMCache's memory objects and vLLM's cache.

    A memory object of a chunk of T tokens holds, for each layer in turn, its T / block size
    blocks in order, each with the bytes that it has in the cache.
    """

    def __init__(self, kv_shape: Sequence[int], use_mla: bool) -> None:
        """Take LMCache's description of the cache.

        Args:
            kv_shape: layers, 1 for MLA and 2 otherwise, chunk size, heads, width of a head.
        """
        self.layers, self.parts, _, heads, width = kv_shape
        self.hidden = heads * width
        self.use_mla = use_mla
        self.kvcaches: list[torch.Tensor] | None = None

    def get_shape(self, num_tokens: int) -> torch.Size:
        """Return the shape of a memory object for `num_tokens` tokens."""
        return torch.Size([self.parts, self.layers, num_tokens, self.hidden])

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        """Copy a chunk into the blocks of tokens [`start`, `end`).

        Args:
            kwargs: `slot_mapping`, a slot for each token of the prompt; `kvcaches`, a tensor
                for each layer, whose first dimension is the block, unless they were given
                before; `vllm_cached_tokens`, whose blocks may be other requests' as well and
                are left alone.

        Raises:
            ValueError: the tokens do not fill whole blocks.
        """
        cached = max(0, int(kwargs.get("vllm_cached_tokens", 0)) - start)
        blocks, size = self._blocks(start, end, kwargs)
        first = -(-min(cached, end - start) // size)
        for cache, rows in zip(self._caches(kwargs), self._rows(memory_obj, blocks), strict=True):
            cache[blocks[first:]] = rows[first:].view(-1, *cache.shape[1:])

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        """Copy the blocks of tokens [`start`, `end`) into a chunk; see `to_gpu`."""
        blocks, _ = self._blocks(start, end, kwargs)
        for cache, rows in zip(self._caches(kwargs), self._rows(memory_obj, blocks), strict=True):
            rows.copy_(cache[blocks].view(len(blocks), -1))
        if self.use_mla:
            memory_obj.metadata.fmt = MemoryFormat.KV_MLA_FMT

    def batched_to_gpu(
        self, memory_objs: Any = None, starts: Any = None, ends: Any = None, **kwargs: Any
    ) -> None:
        """Do `to_gpu` for each chunk."""
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(memory_obj, start, end, **kwargs)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        """Do `from_gpu` for each chunk."""
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory_obj, start, end, **kwargs)

    def _caches(self, kwargs: dict[str, Any]) -> list[torch.Tensor]:
        self.initialize_kvcaches_ptr(**kwargs)
        if self.kvcaches is None:
            raise ValueError("no KV caches were registered")
        return self.kvcaches

    def _blocks(self, start: int, end: int, kwargs: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Return the numbers of the blocks of [`start`, `end`), and the tokens of a block."""
        # MLA: block, token, latent; otherwise: block, head, token, keys and values.
        size = self._caches(kwargs)[0].shape[1 if self.use_mla else 2]
        slots = kwargs["slot_mapping"][start:end].long()
        firsts = slots[::size]
        whole = (firsts[:, None] + torch.arange(size)).flatten()
        if not torch.equal(slots, whole) or bool((firsts % size).any()):
            raise ValueError(
                f"expected whole blocks of {size} tokens, found tokens {start} to {end} "
                "in parts of blocks"
            )
        return firsts // size, size

    def _rows(self, memory_obj: Any, blocks: torch.Tensor) -> torch.Tensor:
        """Return the memory as [layer, block, elements of a block]."""
        memory: torch.Tensor = memory_obj.tensor
        return memory.view(-1).view(self.layers, len(blocks), -1)


def create_connector(config: Any, metadata: Any, engine: Any, layout_hints: Any = None) -> Any:
    """Return a connector for vLLM on the CPU, or what LMCache has for anything else.

    Raises:
        ValueError: the CPU cannot do what `config` asks for.
    """
    if engine != EngineType.VLLM or factories.torch_device_type != "cpu":
        return _create_for_other_devices(config, metadata, engine, layout_hints)
    for setting in ("use_layerwise", "enable_blending", "save_unfull_chunk"):
        if getattr(config, setting):
            raise ValueError(f"LMCache on the CPU: expected {setting}: false, found true")
    return CpuBlockConnector(metadata.kv_shape, metadata.use_mla)


class LMCacheConnectorV1CPU(LMCacheConnectorV1):  # type: ignore[misc]  # vllm is not followed
    """vLLM's LMCache connector; its module has given LMCache a connector for the CPU."""


# LMCache asks for the factory by name when a worker starts, and has no place to register one.
factories.CreateGPUConnector = create_connector

# vLLM can register a backend of one's own, but has chosen one by the time it loads a connector.
CPUSDPAMLAPrefillBackend._ragged_sdpa = attention_by_rows
