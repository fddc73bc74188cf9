"""What can go wrong on one rank, and the places inside a load where it can be made to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import valkey

from headrace.suites.ranks.rank import Rank

_FILLER = bytes(100_000)
# A server of 24 MB has to begin to evict long before.
_MOST_FILLERS = 2000


class PlantedError(RuntimeError):
    """Raised where a test wants an exception that nobody expects."""


class Unhealthy:
    """A health monitor that has nothing good to say."""

    def is_healthy(self) -> bool:
        return False


class FaultyRank(Rank):
    """A rank with commands to break it: at once, or when a load gets to a certain place."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[Any] = []
        self._planted: list[Callable[[], None]] = []
        self._hanging: list[threading.Thread] = []
        self._healed = threading.Event()

    def act(self, fault: str, **about: Any) -> dict[str, Any]:
        """Do `fault` now.

        Args:
            about: port and pid of this rank's server, name of a chunk on it, labels and request.
        """
        self._faults()[fault](about)
        return {}

    def plant(self, moment: str, fault: str, **about: Any) -> dict[str, Any]:
        """Do `fault` once, when the next load gets to `moment`."""
        self._hook(moment, fault, lambda: self._faults()[fault](about))
        return {}

    def heal(self) -> dict[str, Any]:
        """Undo what lies in this process; a planted fault that was not reached is taken away."""
        for memory_obj in self._taken:
            memory_obj.ref_count_down()
        self._taken = []
        self._healed.set()
        for thread in self._hanging:
            thread.join()
        self._hanging = []
        engine = self.engine
        engine.set_health_monitor(None)
        for restore in self._planted:
            restore()
        self._planted = []
        return {}

    def break_start(self) -> dict[str, Any]:
        """Let this rank fail where it makes its storage."""
        from lmcache.v1 import cache_engine

        def fail(*_: Any, **__: Any) -> None:
            raise PlantedError("no storage on this rank")

        cache_engine.StorageManager = fail
        return {}

    def commands(self) -> dict[str, Callable[..., dict[str, Any]]]:
        mine: dict[str, Callable[..., dict[str, Any]]] = {
            "act": self.act,
            "plant": self.plant,
            "heal": self.heal,
            "break_start": self.break_start,
        }
        return {**super().commands(), **mine}

    def _faults(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        return {
            "chunk missing": lambda about: self._delete(about),
            "chunk evicted": lambda about: self._evict(about),
            "wrong-size value": lambda about: self._overwrite(about),
            "server stopped": lambda about: os.kill(about["pid"], signal.SIGKILL),
            "server silent": lambda about: os.kill(about["pid"], signal.SIGSTOP),
            "allocator empty": lambda _: self._take_all(),
            "read hangs": lambda _: self._hang(),
            "exception": lambda _: self._raise(),
            "rank unhealthy": lambda _: self.engine.set_health_monitor(Unhealthy()),
            "request aborted": lambda about: self.engine.lookup_unpin(about["request"]),
            "same request twice": lambda about: self._look_up_again(about),
        }

    def _delete(self, about: dict[str, Any]) -> None:
        with _client(about) as client:
            client.delete(about["name"])

    def _evict(self, about: dict[str, Any]) -> None:
        """Write until the server has thrown the chunk away by itself."""
        with _client(about) as client:
            for number in range(_MOST_FILLERS):
                client.set(f"filler-{number}", _FILLER)
                if not client.exists(about["name"]):
                    return
        raise RuntimeError(f"{about['name']} was not evicted")

    def _overwrite(self, about: dict[str, Any]) -> None:
        with _client(about) as client:
            client.set(about["name"], b"a value of another layout")

    def _take_all(self) -> None:
        backend = self.engine.storage_manager.local_cpu_backend
        shapes, dtypes = self.engine.metadata.get_shapes(), self.engine.metadata.get_dtypes()
        while True:
            taken = backend.allocate(shapes, dtypes, fmt=self.engine.fmt, busy_loop=False)
            if taken is None:
                return
            self._taken.append(taken)

    def _hang(self) -> None:
        self._hanging.append(threading.current_thread())
        self._healed.clear()
        self._healed.wait()

    def _raise(self) -> None:
        raise PlantedError("planted")

    def _look_up_again(self, about: dict[str, Any]) -> None:
        self.lookup(about["labels"], request=about["request"])

    def _hooked(self) -> tuple[Any, ...]:
        shard = getattr(self.engine, "pcp_shard", None)
        return self.engine, self.engine.storage_manager, getattr(shard, "transport", None)

    def _hook(self, moment: str, fault: str, act: Callable[[], None]) -> None:
        """Replace the function at `moment` by one that acts once and then is gone.

        The release has no exchange: what its ranks meet in first is the broadcast of a count.
        """
        engine, storage, transport = self._hooked()
        if moment == "lookup" and self.settings.asynchronous:
            owner, name = storage.storage_backends["RemoteBackend"], "batched_async_contains"
        elif moment == "lookup":
            owner, name = storage, "batched_contains"
        elif moment == "tokens":
            owner, name = engine.token_database, "process_tokens"
        elif moment == "in the local read":
            owner, name = storage, "batched_get"
        elif transport is not None:
            owner, name = transport, "exchange"
        else:
            owner, name = engine, "broadcast_object_fn"
        original = getattr(owner, name)

        def hooked(*arguments: Any, **options: Any) -> Any:
            setattr(owner, name, original)
            if moment == "after the exchange":
                result = original(*arguments, **options)
                act()
                return result
            if fault == "fingerprint differs" and name == "exchange":
                # An answer ends with the fingerprint.
                arguments = (arguments[0][:-1] + bytes([arguments[0][-1] ^ 1]),)
            else:
                act()
            return original(*arguments, **options)

        setattr(owner, name, hooked)
        self._planted.append(lambda: setattr(owner, name, original))


def _client(about: dict[str, Any]) -> valkey.Valkey:
    return valkey.Valkey(host="127.0.0.1", port=about["port"], socket_timeout=20)
