"""What one rank does when its pool tells it to. Every answer is a dict that JSON can hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from headrace.suites.ranks import storage
from headrace.suites.ranks.engine import build_engine
from headrace.suites.ranks.lookup import Answers, look_up
from headrace.suites.ranks.prompt import Pages, tokens_of
from headrace.suites.ranks.settings import Settings

# Far above every deadline of a pool: whoever waits this long was left alone.
_GROUP_SECONDS = 120.0


class Rank:
    """One rank: its place in the group, its engine once it was opened, and its commands.

    A prompt is `labels`, one for each whole chunk, and `tail` tokens more.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.world = 0
        self.settings = Settings()
        self.answers = Answers()
        self._engine: Any = None

    @property
    def engine(self) -> Any:
        """The engine; RuntimeError before `open`."""
        if self._engine is None:
            raise RuntimeError("no engine was opened")
        return self._engine

    def join(self, port: int, process: int, processes: int, replica: int) -> dict[str, Any]:
        """Join the default group, in which every `replica` processes in a row are one replica."""
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=process,
            world_size=processes,
            timeout=timedelta(seconds=_GROUP_SECONDS),
        )
        self.rank, self.world = process % replica, replica
        return {}

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Build an engine and let it register with the others."""
        self.settings = Settings(**settings)
        self._engine = build_engine(self.settings, self.rank, self.world)
        if self.settings.asynchronous:
            self._engine.post_init(async_lookup_server=self.lookup_server())
        else:
            self._engine.post_init()
        return {"sharded": getattr(self._engine, "pcp_shard", None) is not None}

    def lookup_server(self) -> Any:
        """Return what answers asynchronous lookups: here nobody is told of an answer."""
        return self.answers

    def store(
        self,
        labels: Sequence[int],
        tail: int = 0,
        request: str = "store",
        together: bool = False,
    ) -> dict[str, Any]:
        """Prefill a prompt and store it; returns once every put has ended.

        With `together` the store begins, and is timed, when all ranks are ready for it.
        """
        pages = self._pages(labels, tail, seed=1)
        pages.fill(labels)
        if together:
            dist.barrier()
        began = time.monotonic()
        self.engine.store(
            self._tokens(labels, tail),
            kvcaches=pages.layers,
            slot_mapping=pages.slots,
            req_id=request,
        )
        returned = time.monotonic()
        storage.wait_for_puts(self.engine.storage_manager)
        return {"seconds": returned - began, "put_seconds": time.monotonic() - began}

    def lookup(self, labels: Sequence[int], tail: int = 0, request: str = "r") -> dict[str, Any]:
        """Ask as the scheduler asks, by hashes; tokens is None where no lookup server runs."""
        if self.engine.storage_manager is None:
            return {"tokens": None}
        tokens = self._tokens(labels, tail)
        return {"tokens": look_up(self.engine, self.settings, self.answers, tokens, request)}

    def load(
        self,
        labels: Sequence[int],
        tail: int = 0,
        request: str = "r",
        begin: int = 0,
        end: int | None = None,
        together: bool = False,
    ) -> dict[str, Any]:
        """Load chunks [`begin`, `end`) of a prompt into poisoned pages and look at every byte.

        With `together` the load begins, and is timed, when all ranks are ready for it.
        """
        size = self.settings.chunk_size
        pages = self._pages(labels, tail, seed=2)
        tokens = self._tokens(labels, tail)
        last = len(labels) if end is None else end
        if end is not None:
            tokens = tokens[: end * size]
        mask = torch.ones(len(tokens), dtype=torch.bool)
        mask[: begin * size] = False
        if together:
            dist.barrier()
        began = time.monotonic()
        got = self.engine.retrieve(
            tokens,
            mask,
            kvcaches=pages.layers,
            slot_mapping=pages.slots[: len(tokens)],
            req_id=request,
        )
        seconds = time.monotonic() - began
        count = int(got.sum())
        whole = torch.zeros_like(got)
        whole[begin * size : begin * size + count] = True
        chunks = range(begin, begin + count // size)
        return {
            "tokens": count,
            "prefix": bool(torch.equal(got, whole)) and count % size == 0,
            "wrong": pages.wrong(labels, chunks),
            "strayed": pages.strayed(begin * size, last * size),
            "seconds": seconds,
        }

    def release(self, request: str = "r") -> dict[str, Any]:
        """End a request: what its lookup held is let go."""
        self.engine.lookup_unpin(request)
        return {}

    def clear(
        self, labels: Sequence[int] | None = None, locations: Sequence[str] | None = None
    ) -> dict[str, Any]:
        tokens = None if labels is None else self._tokens(labels, 0)
        return {"removed": int(self.engine.clear(tokens, locations))}

    def names(self, labels: Sequence[int]) -> dict[str, Any]:
        """Return the names of a prompt's chunks, as this rank has them."""
        found = self.engine.token_database.process_tokens(self._tokens(labels, 0))
        return {"names": [key.to_string() for _, _, key in found]}

    def held(self) -> dict[str, Any]:
        """Return how many bytes are taken from the CPU pool, and how many chunks L1 has."""
        return storage.held(self.engine.storage_manager)

    def poison(self) -> dict[str, Any]:
        """Overwrite the CPU pool, which must be free: a buffer that nobody filled again shows.

        Without it a store leaves the right bytes where the next load's buffers are.
        """
        storage.poison(self.engine.storage_manager)
        return {}

    def commands(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """Return what the pool may ask for, by name."""
        return {
            name: getattr(self, name)
            for name in (
                "join", "open", "store", "lookup", "load", "release", "clear", "names", "held",
                "poison",
            )
        }  # fmt: skip

    def _tokens(self, labels: Sequence[int], tail: int) -> list[int]:
        return tokens_of(labels, self.settings.chunk_size, tail)

    def _pages(self, labels: Sequence[int], tail: int, seed: int) -> Pages:
        shape = self.settings.shape
        return Pages(shape, len(labels) * shape.chunk_size + tail, seed)
