"""The transport of the sharded store over real process groups."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lmcache.v1.pcp_shard.registration import Registration, register
from lmcache.v1.pcp_shard.settings import ShardSettingsError
from lmcache.v1.pcp_shard.transport import ShardTransportError, Transport

pytestmark = pytest.mark.patched_only(reason="stock has no sharded store")

STOCK_REASONS: dict[str, str] = {}

TIMEOUT = 20.0
# For the tests in which it passes.
SHORT = 2.0
DEADLINE = 90.0
CPU = torch.device("cpu")


def in_processes(world: int, call: Callable[[int], Any], folder: Any) -> list[Any]:
    """Return what `call(global rank)` returns or raises in each process of a gloo world.

    A process that does not end within the deadline is killed, and its outcome is None.
    """
    context = multiprocessing.get_context("fork")
    outcomes: Any = context.SimpleQueue()
    processes = [
        context.Process(target=_run, args=(rank, world, call, f"file://{folder}/world", outcomes))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + DEADLINE
    for process in processes:
        process.join(max(0.1, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
    found: dict[int, Any] = {}
    while not outcomes.empty():
        rank, outcome = outcomes.get()
        found[rank] = outcome
    return [found.get(rank) for rank in range(world)]


def _run(rank: int, world: int, call: Callable[[int], Any], where: str, outcomes: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=where,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=DEADLINE),
    )
    try:
        outcome = call(rank)
    except Exception as error:  # noqa: BLE001 - it is what this rank found
        outcome = f"{type(error).__name__}: {error}"
    outcomes.put((rank, outcome))
    # Not by the interpreter: it would wait for threads that the fork has left nowhere.
    os._exit(0)


def test_every_rank_gets_what_each_has_said(tmp_path: Any) -> None:
    def call(rank: int) -> Any:
        transport = Transport.create(rank, 3, TIMEOUT, CPU)
        fixed = transport.exchange(bytes([rank, 7]))
        return fixed, transport.exchange_any(b"x" * rank)

    said = ([b"\0\7", b"\1\7", b"\2\7"], [b"", b"x", b"xx"])
    assert in_processes(3, call, tmp_path) == [said] * 3


def test_a_chunk_comes_from_its_owner_in_every_replica(tmp_path: Any) -> None:
    def call(rank: int) -> Any:
        replica, worker = divmod(rank, 2)
        transport = Transport.create(worker, 2, TIMEOUT, CPU)
        got = []
        for owner in (1, 0, 1):
            tensor = torch.full((4,), 10 * replica + worker, dtype=torch.uint8)
            transport.broadcast(tensor, owner)
            got.append(int(tensor[3]))
        return got

    assert in_processes(4, call, tmp_path) == [[1, 0, 1]] * 2 + [[11, 10, 11]] * 2


def test_two_broadcasts_may_be_on_their_way(tmp_path: Any) -> None:
    def call(rank: int) -> Any:
        transport = Transport.create(rank, 2, TIMEOUT, CPU)
        tensors = [torch.full((1_000_000,), rank, dtype=torch.uint8) for _ in range(2)]
        coming = [transport.start_broadcast(tensor, src) for src, tensor in enumerate(tensors)]
        for each in coming:
            each.wait()
        return [int(tensor.min()) for tensor in tensors]

    assert in_processes(2, call, tmp_path) == [[0, 1]] * 2


@pytest.mark.parametrize("what", ["exchange", "broadcast", "create"])
def test_a_rank_that_stays_away_fails_the_others_in_time(what: str, tmp_path: Any) -> None:
    def call(rank: int) -> Any:
        if rank == 1 and what == "create":
            time.sleep(4 * SHORT)
            return "away"
        transport = Transport.create(rank, 3, SHORT, CPU)
        transport.exchange(b"all here")
        began = time.monotonic()
        if rank == 1:
            time.sleep(4 * SHORT)
            return "away"
        try:
            if what == "exchange":
                transport.exchange(b"?")
            else:
                transport.broadcast(torch.zeros(4, dtype=torch.uint8), 1)
        except ShardTransportError as error:
            assert time.monotonic() - began < 4 * SHORT
            assert f"rank {rank} of 3" in str(error)
            return "failed"
        return "went on"

    outcomes = in_processes(3, call, tmp_path)
    assert outcomes[1] == "away"
    for outcome in (outcomes[0], outcomes[2]):
        assert str(outcome).startswith(("failed", "ShardTransportError")), outcomes


def test_a_rank_that_dies_fails_the_others(tmp_path: Any) -> None:
    def call(rank: int) -> Any:
        transport = Transport.create(rank, 3, TIMEOUT, CPU)
        transport.exchange(b"all here")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        transport.exchange(b"?")
        return "went on"

    outcomes = in_processes(3, call, tmp_path)
    assert outcomes[1] is None
    for outcome in (outcomes[0], outcomes[2]):
        assert str(outcome).startswith("ShardTransportError"), outcomes


def test_ranks_register_over_real_groups(tmp_path: Any) -> None:
    def call(rank: int) -> Any:
        transport = Transport.create(rank, 3, TIMEOUT, CPU)
        register(transport, Registration(rank, facts={"S": "256"}))
        return register(transport, Registration(rank, "no memory" if rank == 2 else ""))

    [outcome] = set(map(str, in_processes(3, call, tmp_path)))
    assert outcome.startswith("ShardRegistrationError") and "rank 2 is not initialized" in outcome


@pytest.mark.parametrize(("worker", "world"), [(2, 2), (0, 2), (1, 2), (0, 4), (2, 4)])
def test_a_width_that_is_not_the_groups_is_refused(worker: int, world: int, tmp_path: Any) -> None:
    def call(rank: int) -> Any:
        if rank == 2:
            Transport.create(worker, world, SHORT, CPU)
        return rank

    refusal = str(in_processes(3, call, tmp_path)[2])
    assert refusal.startswith("ShardSettingsError: pcp_shard_store"), refusal
    assert f"world_size={world}" in refusal


def test_without_process_groups_it_is_refused() -> None:
    with pytest.raises(ShardSettingsError, match=r"world_size=2.* torch\.distributed"):
        Transport.create(0, 2, TIMEOUT, CPU)
