"""The scheduler's end of asynchronous lookups: LMCache's own client, over its own sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.lookup_client.factory import LookupClientFactory
from lmcache.v1.metadata import LMCacheMetadata

from headrace.suites.ranks.engine import stand_in_for_vllm
from headrace.suites.ranks.prompt import tokens_of
from headrace.suites.ranks.settings import Settings
from tests.patches.lmcache.deadline import wait_until

SECONDS = 20.0
# What the client says of a lookup that it has not been asked yet.
UNKNOWN = -1


class Scheduler:
    """Asks for prompts as vLLM's scheduler does: again and again, until there is an answer.

    Attributes:
        client: LMCache's asynchronous lookup client.
    """

    def __init__(self, client: Any, chunk_size: int) -> None:
        self.client = client
        self._chunk_size = chunk_size

    def begin(self, labels: Sequence[int], request: str) -> None:
        """Ask for a prompt once and leave the answer to come."""
        self.client.lookup(tokens_of(labels, self._chunk_size), request)

    def ask(self, labels: Sequence[int], tail: int = 0, request: str = "r") -> int:
        """Return how many tokens of a prompt can be loaded.

        Raises:
            HungError: there is no answer in time, not even the client's own time-out.
        """
        tokens = tokens_of(labels, self._chunk_size, tail)
        answers: list[int] = []

        def answered() -> bool:
            answer = self.client.lookup_cache(request)
            if answer == UNKNOWN:
                answer = self.client.lookup(tokens, request)
            answers.extend([] if answer is None else [answer])
            return bool(answers)

        wait_until(answered, SECONDS, f"no answer to the lookup of {request}")
        return answers[0]


@contextlib.contextmanager
def scheduler(settings: Settings, world: int) -> Iterator[Scheduler]:
    """Connect to the lookup servers of `world` ranks; settings.extra["engine_id"] finds them."""
    stand_in_for_vllm(with_hash=True)
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=settings.chunk_size,
        save_unfull_chunk=False,
        enable_async_loading=True,
        pre_caching_hash_algorithm="sha256_cbor",
        extra_config={"pcp_shard_store": settings.sharded, **settings.extra},
        **settings.config,
    )
    shape = settings.shape
    metadata = LMCacheMetadata(
        model_name="model", world_size=world, local_world_size=world, worker_id=0,
        local_worker_id=0, kv_dtype=torch.bfloat16,
        kv_shape=(shape.layers, 1, shape.chunk_size, 1, shape.hidden), use_mla=True,
        role="scheduler", chunk_size=shape.chunk_size, engine_id=settings.extra["engine_id"],
    )  # fmt: skip
    client = LookupClientFactory.create_lookup_client(config, metadata)
    try:
        yield Scheduler(client, settings.chunk_size)
    finally:
        # Not close(): on the pinned release it waits for a thread that waits for a message.
        client.running = False
