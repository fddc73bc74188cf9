"""Drives one rank of an LMCache engine and prints, a line for each step, which calls it made.

    PYTHONPATH=SITE python -m tests.patches.call_trace RANK mla|heads sync|async unset|false

Two builds that print the same lines make the same calls, with the same arguments and results, on
the storage manager, the back ends, the connector, the copy to and from the paged cache and the
broadcasts, and leave the same bytes on the server. A step's calls are sorted: threads interleave.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.cache_engine import LMCacheEngine, LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector.redis_connector import RESPConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend
from lmcache.v1.storage_backend.storage_manager import StorageManager

from headrace.suites.valkey_server import ValkeyServer

CHUNK = 16
LAYERS = 2
WIDTH = 32
WATCHED = (StorageManager, LocalCPUBackend, RemoteBackend, RESPConnector)
# Asked as often as threads happen to look, so their number says nothing.
POLLED = {"exists_in_put_tasks", "get_local_cpu_backend"}
SETTLE_SECONDS = 20.0


class Trace:
    """The calls since the last step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[str] = []

    def note(self, name: str, given: Sequence[Any], named: dict[str, Any], result: Any) -> None:
        arguments = [_plain(each) for each in given]
        arguments += [f"{key}={_plain(named[key])}" for key in sorted(named)]
        with self._lock:
            self._calls.append(f"{name}({', '.join(arguments)}) -> {_plain(result)}")

    def watch(self, kind: type) -> None:
        """Note each call of a public method that `kind` itself defines."""
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name not in POLLED:
                setattr(kind, name, self._noted(f"{kind.__name__}.{name}", method))

    def has(self, name: str) -> bool:
        """Whether `name` was called since the last step."""
        with self._lock:
            return any(call.startswith(name) for call in self._calls)

    def step(self, name: str, result: Any) -> None:
        """Print the calls since the last step."""
        with self._lock:
            calls, self._calls = sorted(self._calls), []
        print(json.dumps({"step": name, "result": _plain(result), "calls": calls}), flush=True)

    def _noted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def awaited(itself: Any, *given: Any, **named: Any) -> Any:
                result = await method(itself, *given, **named)
                self.note(name, given, named, result)
                return result

            return awaited

        @functools.wraps(method)
        def called(itself: Any, *given: Any, **named: Any) -> Any:
            result = method(itself, *given, **named)
            if not inspect.isgenerator(result):
                self.note(name, given, named, result)
            return result

        return called


class PagedCache(MockGPUConnector):  # type: ignore[misc]  # lmcache has no types
    """Stands for the paged cache: a token's bytes are its position."""

    def __init__(self, kv_shape: tuple[int, ...], trace: Trace) -> None:
        super().__init__(kv_shape)
        self._trace = trace

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **named: Any) -> None:
        for memory_obj, start in zip(memory_objs, starts, strict=True):
            memory_obj.tensor.fill_(start / CHUNK)
        self._trace.note("from_gpu", [list(memory_objs), list(starts), list(ends)], {}, None)

    def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **named: Any) -> None:
        values = [float(memory_obj.tensor.flatten()[0]) for memory_obj in memory_objs]
        self._trace.note("to_gpu", [values, list(starts), list(ends)], {}, None)


class Scheduler:
    """Takes the answers of asynchronous lookups."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.answered = threading.Event()

    def send_response_to_scheduler(self, lookup_id: str, tokens: int, *_: Any, **__: Any) -> None:
        self._trace.note("answer", [lookup_id, tokens], {}, None)
        self.answered.set()


def main(rank: int, mla: bool, asynchronous: bool, extra: dict[str, Any]) -> None:
    """Store, look up, load, end, and clear, on one rank of two."""
    trace = Trace()
    with ValkeyServer() as server:
        engine, scheduler = _engine(rank, mla, asynchronous, extra, server.port, trace)
        for kind in WATCHED:
            trace.watch(kind)
        prompt = list(range(5 * CHUNK + 3))
        slots = torch.arange(len(prompt))
        caches: list[torch.Tensor] = []
        whole = prompt[: 5 * CHUNK]
        engine.store(whole, kvcaches=caches, slot_mapping=slots, req_id="s")
        _settle(engine, trace)
        trace.step("store", None)
        for request, tokens in (("first", prompt), ("longer", [*prompt, *range(40)])):
            if engine.storage_manager is not None:
                trace.step("lookup", _lookup(engine, scheduler, asynchronous, tokens, request))
            mask = torch.ones(len(whole), dtype=torch.bool)
            mask[: CHUNK if request == "longer" else 0] = False
            loadable = engine.storage_manager is not None or not asynchronous
            if loadable:
                loaded = engine.retrieve(
                    whole, mask, kvcaches=caches, slot_mapping=slots, req_id=request
                )
                trace.step("load", int(loaded.sum()))
            engine.lookup_unpin(request)
            trace.step("end", None)
        server_keys = server.client().keys("*")
        digests = {
            key.decode(): hashlib.sha256(server.client().get(key) or b"").hexdigest()  # type: ignore[arg-type]
            for key in sorted(server_keys)  # type: ignore[arg-type]
        }
        trace.step("server", json.dumps(digests, sort_keys=True))
        trace.step("clear", engine.clear(whole, locations=["LocalCPUBackend"]))


def _engine(
    rank: int, mla: bool, asynchronous: bool, extra: dict[str, Any], port: int, trace: Trace
) -> tuple[LMCacheEngine, Scheduler]:
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK,
        local_cpu=True,
        max_local_cpu_size=0.01,
        remote_url=f"resp://127.0.0.1:{port}",
        remote_serde="naive",
        save_unfull_chunk=False,
        enable_async_loading=asynchronous,
        blocking_timeout_secs=5,
        extra_config={"save_chunk_meta": False, "resp_num_threads": 2, **extra},
    )
    metadata = LMCacheMetadata(
        model_name="model",
        world_size=2,
        local_world_size=2,
        worker_id=rank,
        local_worker_id=rank,
        kv_dtype=torch.float32,
        kv_shape=(LAYERS, 1 if mla else 2, CHUNK, 1, WIDTH),
        use_mla=mla,
        role="worker",
        chunk_size=CHUNK,
        engine_id="engine",
    )

    def broadcast(tensor: torch.Tensor, source: int) -> torch.Tensor:
        trace.note("broadcast", [tensor, source], {}, None)
        return tensor

    def broadcast_object(value: Any, source: int) -> Any:
        trace.note("broadcast_object", [str(value), source], {}, None)
        return value

    connector = PagedCache(metadata.kv_shape, trace)
    engine = LMCacheEngineBuilder.get_or_create(
        "engine", config, metadata, connector, broadcast, broadcast_object
    )
    scheduler = Scheduler(trace)
    engine.post_init(async_lookup_server=scheduler)
    return engine, scheduler


def _lookup(
    engine: LMCacheEngine, scheduler: Scheduler, asynchronous: bool, tokens: list[int], name: str
) -> Any:
    if not asynchronous:
        return engine.lookup(tokens=tokens, lookup_id=name, pin=True)
    scheduler.answered.clear()
    engine.async_lookup_and_prefetch(lookup_id=name, tokens=tokens, pin=True)
    assert scheduler.answered.wait(SETTLE_SECONDS), "the lookup was not answered"
    return None


def _settle(engine: LMCacheEngine, trace: Trace) -> None:
    """Wait until everything that was stored has reached the server and was let go of."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while engine.storage_manager is not None and not trace.has(
        "RemoteBackend.batched_put_callback"
    ):
        assert time.monotonic() < deadline, "the store did not end"
        time.sleep(0.01)


def _plain(value: Any) -> str:
    if isinstance(value, CacheEngineKey):
        return str(value.to_string())
    if isinstance(value, MemoryObj):
        return f"object of {value.get_size()} bytes"
    if isinstance(value, torch.Tensor):
        return f"tensor {tuple(value.shape)} {value.dtype}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_plain(k)}: {_plain(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple | set):
        return "[" + ", ".join(_plain(each) for each in value) + "]"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"a {type(value).__name__}"


if __name__ == "__main__":
    _, which, kind, mode, switch = sys.argv
    status = 0
    try:
        main(
            int(which), kind == "mla", mode == "async",
            {} if switch == "unset" else {"pcp_shard_store": False},
        )  # fmt: skip
    except BaseException:  # noqa: BLE001 - printed, and the process ends in any case
        traceback.print_exc()
        status = 1
    # An engine's threads outlive it, and closing it is not what is compared here.
    sys.stdout.flush()
    os._exit(status)
