"""A rank that says all that its engine holds, and can be made to leak."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from lmcache.v1.event_manager import EventStatus, EventType
from lmcache.v1.pin_monitor import PinMonitor

from tests.patches.lmcache.count_complaints import count_complaints
from tests.patches.lmcache.rank_faults import FaultyRank
from tests.patches.lmcache.served_rank import ServedRank


class CountedRank(FaultyRank, ServedRank):
    """A rank with commands to count, to run several commands at once, and to forget leases."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded: set[str] = set()
        # Ends with the process, not with this method.
        self._counting = ExitStack()
        self._complaints = self._counting.enter_context(count_complaints())

    def account(self) -> dict[str, Any]:
        """Return every count that a request changes, and what LMCache complained of."""
        engine = self.engine
        held = self.held()
        return {
            **held,
            # Beside the chunks that L1 keeps, with one reference to each.
            "bytes_elsewhere": held["bytes"] - held["chunks"] * self.page_bytes,
            "references_elsewhere": held["references"] - held["chunks"],
            "leases": len(engine.lookup_leases._leases),
            "pins": len(engine.lookup_pins),
            "watched_pins": PinMonitor.GetOrCreate(engine.config).get_monitored_count(),
            "events": sum(
                engine.event_manager.get_events_count_by_status(EventType.LOADING, status)
                for status in EventStatus
            ),
            "complaints": list(self._complaints),
        }

    @property
    def page_bytes(self) -> int:
        """What one chunk takes from the pool, in whole pages."""
        return -(-self.settings.shape.chunk_bytes // 4096) * 4096

    def drop(self, labels: Sequence[int], chunk: int) -> dict[str, Any]:
        """Remove one chunk of a prompt from L1, whoever holds it."""
        chunks = list(self.engine.token_database.process_tokens(self._tokens(labels, 0)))
        self.engine.storage_manager.remove(chunks[chunk][2], ["LocalCPUBackend"])
        return {}

    def steps(self, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Run commands one after another, without a word to the pool between them."""
        commands = self.commands()
        return {
            "answers": [
                commands[step["do"]](**{name: step[name] for name in step if name != "do"})
                for step in steps
            ]
        }

    def load(self, labels: Sequence[int], *rest: Any, **options: Any) -> dict[str, Any]:
        self._loaded.add(options["request"])
        return super().load(labels, *rest, **options)

    def wait_at_most(self, seconds: float) -> dict[str, Any]:
        """Let loads wait for the server no longer than this from now on."""
        self.engine.config.blocking_timeout_secs = seconds
        return {}

    def forget_aborts(self) -> dict[str, Any]:
        """Plant a leak: the lease of a request that never loaded is not closed."""
        unpin = self.engine.lookup_unpin

        def forgetful(lookup_id: str, attempt: int = 0) -> None:
            if lookup_id in self._loaded:
                unpin(lookup_id, attempt)

        self.engine.lookup_unpin = forgetful
        return {}

    def release_twice(self) -> dict[str, Any]:
        """Plant a double release: a lease's pins are taken away once more when it is closed."""
        leases = self.engine.lookup_leases
        close = leases.close

        def closing_twice(lookup_id: str, attempt: int = 0) -> None:
            pins = [pin for lease in leases._leases.get(lookup_id, ()) for pin in lease._pins]
            close(lookup_id, attempt)
            for pin in pins:
                pin.unpin()

        leases.close = closing_twice
        return {}

    def commands(self) -> dict[str, Callable[..., dict[str, Any]]]:
        mine: dict[str, Callable[..., dict[str, Any]]] = {
            "account": self.account,
            "drop": self.drop,
            "steps": self.steps,
            "wait_at_most": self.wait_at_most,
            "forget_aborts": self.forget_aborts,
            "release_twice": self.release_twice,
        }
        return {**super().commands(), **mine}
