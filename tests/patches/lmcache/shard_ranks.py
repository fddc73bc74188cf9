"""Ranks of a sharded store as threads: everything is real but the network and the storage."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from lmcache.observability import LMCStatsMonitor
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.pcp_shard.sharded_store import ShardedStore
from lmcache.v1.pcp_shard.staging import Staging
from lmcache.v1.pcp_shard.transport import ShardTransportError, Transport
from lmcache.v1.token_database import ChunkedTokenDatabase

from tests.patches.lmcache.deadline import started

TOKENS = 4
WIDTH = 8
SECONDS = 20.0


def shard_config(**settings: Any) -> LMCacheEngineConfig:
    """Return settings under which the sharded store starts, but for `settings`."""
    extra = {"pcp_shard_store": True, **settings.pop("extra_config", {})}
    return LMCacheEngineConfig.from_defaults(
        **{
            "chunk_size": TOKENS,
            "save_unfull_chunk": False,
            "pre_caching_hash_algorithm": "sha256_cbor",
            "blocking_timeout_secs": 1,
            "extra_config": extra,
            **settings,
        }
    )


def shard_metadata(rank: int = 0, world: int = 3, **fields: Any) -> LMCacheMetadata:
    """Return the metadata of one rank of a small MLA model."""
    return LMCacheMetadata(
        **{
            "model_name": "model",
            "world_size": world,
            "local_world_size": world,
            "worker_id": rank,
            "local_worker_id": rank,
            "kv_dtype": torch.bfloat16,
            "kv_shape": (2, 1, TOKENS, 1, WIDTH),
            "use_mla": True,
            "chunk_size": TOKENS,
            "role": "worker",
            **fields,
        }
    )


class ThreadNetwork:
    """Carries what the threads of a group say; a rank that stays away is a failed collective.

    A broadcast reads its tensor as late as it may and writes it as early as it may.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.barrier = threading.Barrier(world)
        self.payloads = [b""] * world
        self.sent: dict[int, torch.Tensor] = {}
        self.arrived = threading.Condition()


class ThreadTransport(Transport):  # type: ignore[misc]
    """One thread's end of a ThreadNetwork.

    Attributes:
        log: what this rank has done, in order: "exchange", or the source of a broadcast.
    """

    def __init__(self, network: ThreadNetwork, rank: int) -> None:
        super().__init__(rank, network.world)
        self.network = network
        self.log: list[str | int] = []

    def exchange(self, payload: bytes) -> list[bytes]:
        self.log.append("exchange")
        self.network.payloads[self.rank] = payload
        self._meet()
        payloads = list(self.network.payloads)
        self._meet()
        assert len({len(each) for each in payloads}) == 1, "an exchange has one size"
        return payloads

    def start_broadcast(self, tensor: torch.Tensor, src: int) -> Any:
        self.log.append(src)
        number = len([each for each in self.log if each != "exchange"])
        if src != self.rank:
            tensor.fill_(0xEE)
        return SimpleNamespace(wait=lambda: self._pass(number, tensor, src))

    def _pass(self, number: int, tensor: torch.Tensor, src: int) -> None:
        with self.network.arrived:
            if src == self.rank:
                self.network.sent[number] = tensor.clone()
                self.network.arrived.notify_all()
            elif self.network.arrived.wait_for(lambda: number in self.network.sent, SECONDS):
                tensor.copy_(self.network.sent[number])
            else:
                raise ShardTransportError(f"rank {src} sent nothing")

    def _meet(self) -> None:
        try:
            self.network.barrier.wait(SECONDS / 2)
        except threading.BrokenBarrierError as error:
            raise ShardTransportError("not all ranks came") from error


@dataclass
class Rank:
    """One rank: its store, what it holds, and what a load has written.

    Attributes:
        held: the chunks in its storage, by key.
        paged: what was copied into the paged cache: start token → bytes.
        copy_fault: called before each copy into the paged cache.
        read_fault: called before each read of the storage.
    """

    store: ShardedStore
    transport: ThreadTransport
    database: ChunkedTokenDatabase
    held: dict[Any, Any] = field(default_factory=dict)
    paged: dict[int, bytes] = field(default_factory=dict)
    healthy: bool = True
    copy_fault: Callable[[int], None] = lambda start: None
    read_fault: Callable[[], None] = lambda: None

    def hold(self, tokens: list[int]) -> None:
        """Put the chunks of a prompt that this rank owns into its storage."""
        for start, _, key in self.database.process_tokens(tokens):
            if self.store.owns(start):
                self.held[key] = chunk = self.take()
                chunk.raw_tensor.copy_(chunk_bytes(start))

    def take(self, *shape: int) -> TensorMemoryObj:
        """Return a new chunk, of another shape if one is given.

        It is of no pool: LMCache's pool frees what the garbage collector finds, and if that
        happens in a call of the statistics, under their lock, the thread waits for itself.
        """
        size = torch.Size(shape or (1, 2, TOKENS, WIDTH))
        data = torch.empty(size.numel() * torch.bfloat16.itemsize, dtype=torch.uint8)
        about = MemoryObjMetadata(
            size, torch.bfloat16, 0, data.nbytes, 1, 0, MemoryFormat.KV_MLA_FMT,
            shapes=[size], dtypes=[torch.bfloat16],
        )  # fmt: skip
        return TensorMemoryObj(data, about, None)

    def references(self) -> list[int]:
        """Return the reference counts of what is held."""
        return [chunk.get_ref_count() for chunk in self.held.values()]

    def get_active_storage_backends(self, search_range: Any = None) -> Iterator[tuple[str, Any]]:
        yield "storage", self

    def batched_get(self, keys: list[Any], location: str) -> list[Any]:
        self.read_fault()
        chunks = [self.held.get(key) for key in keys]
        for chunk in chunks:
            if chunk is not None:
                chunk.ref_count_up()
        return chunks

    def batched_to_gpu(
        self, chunks: list[Any], starts: list[int], ends: list[int], **_: Any
    ) -> None:
        for chunk, start, end in zip(chunks, starts, ends, strict=True):
            self.copy_fault(start)
            assert chunk.tensor.shape[2] == end - start
            self.paged[start] = chunk.raw_tensor.numpy().tobytes()


def chunk_bytes(start: int) -> torch.Tensor:
    """Return the bytes of the chunk that starts at a token."""
    generator = torch.Generator().manual_seed(start + 1)
    size = 2 * TOKENS * WIDTH * torch.bfloat16.itemsize
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


def ranks(world: int = 3, **settings: Any) -> list[Rank]:
    """Return the ranks of one group, registered."""
    network = ThreadNetwork(world)
    return [_rank(network, index, **settings) for index in range(world)]


Each = TypeVar("Each")


def on_all(group: Sequence[Each], call: Callable[[Each], Any]) -> list[Any]:
    """Return what each rank returns or raises, each in a thread of its own."""

    def outcome(rank: Each) -> Any:
        try:
            return call(rank)
        except Exception as error:  # noqa: BLE001 - it is what this rank found
            return error

    calls = started([functools.partial(outcome, rank) for rank in group])
    return [each.result_within(2 * SECONDS, "a rank") for each in calls]


def load_all(group: list[Rank], tokens: list[int], begin: int = 0) -> list[Any]:
    """Load the tokens from `begin` on all ranks; return how far each came, or what it raised."""
    mask = torch.ones(len(tokens), dtype=torch.bool)
    mask[:begin] = False

    def load(rank: Rank) -> int:
        rank.paged.clear()
        loaded = rank.store.load(tokens, mask, req_id="request")
        end = begin + int(loaded.sum())
        assert loaded[begin:end].all(), "what is loaded has no gap"
        return end

    return on_all(group, load)


def check_paged(group: list[Rank], begin: int, end: int) -> None:
    """Check that every rank has written the chunks of [begin, end), and nothing else."""
    wanted = {start: chunk_bytes(start).numpy().tobytes() for start in range(begin, end, TOKENS)}
    for index, rank in enumerate(group):
        assert rank.paged.keys() == wanted.keys(), f"rank {index} wrote {sorted(rank.paged)}"
        assert rank.paged == wanted, f"rank {index} wrote wrong bytes"


def _rank(network: ThreadNetwork, index: int, **settings: Any) -> Rank:
    config, metadata = shard_config(**settings), shard_metadata(index, network.world)
    engine = SimpleNamespace(
        async_loading=False,
        config=config,
        metadata=metadata,
        token_database=ChunkedTokenDatabase(config, metadata),
        stats_monitor=LMCStatsMonitor.GetOrCreate(),
        retrieve_locations=None,
    )
    store = ShardedStore(engine)
    store.transport = transport = ThreadTransport(network, index)
    store.staging = Staging(
        metadata.get_shapes(), metadata.get_dtypes(), MemoryFormat.KV_MLA_FMT, torch.device("cpu")
    )
    rank = Rank(store, transport, engine.token_database)
    engine.storage_manager = engine.gpu_connector = rank
    engine.is_healthy = lambda: rank.healthy
    return rank
