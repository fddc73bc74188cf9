"""The lease itself: what is handed to it is released once, whoever closes it and when."""

from __future__ import annotations

import functools
import random
import threading
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest

from tests.patches.lmcache.deadline import started

# All of it is new. What the release does instead is in test_lookup_lease.py.
STOCK_REASONS: dict[str, str] = {}

pytestmark = pytest.mark.patched_only(reason="the module is the patch's")

SECONDS = 20.0
LOCATION = "Pins"


@dataclass(eq=False)
class Counted:
    """A memory object with one reference and one pin to give."""

    references: int = 1
    pins: int = 1
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ref_count_up(self) -> None:
        with self.lock:
            self.references += 1

    def ref_count_down(self) -> None:
        with self.lock:
            self.references -= 1

    def unpin(self) -> bool:
        with self.lock:
            self.pins -= 1
        return True

    @property
    def counts(self) -> tuple[int, int]:
        return self.references, self.pins


class Backend:
    """A storage back end whose keys are the objects that count their pins."""

    def pin_holder(self, key: Any) -> Any:
        return key


@pytest.fixture
def leases() -> Any:
    return import_module("lmcache.v1.lookup_lease").LookupLeases(lambda: {LOCATION: Backend()})


def take(leases: Any, lookup_id: str, objs: list[Counted]) -> None:
    leases.hold_pins(lookup_id, {LOCATION: objs})
    leases.hold_objs(lookup_id, objs)


def test_a_lease_is_open_until_it_is_closed(leases: Any) -> None:
    obj = Counted()
    take(leases, "lookup", [obj])
    assert leases.has("lookup")
    assert leases.pinned == {"lookup": {LOCATION: [obj]}}
    assert obj.counts == (1, 1)
    for _ in range(2):
        leases.close("lookup")
        assert not leases.has("lookup")
        assert leases.pinned == {}
        assert obj.counts == (0, 0)
    leases.close("unknown")


def test_a_closed_lease_releases_at_once(leases: Any) -> None:
    lease, obj, closed = leases.open("lookup"), Counted(), threading.Event()
    leases.close("lookup")
    leases.hold_pins("lookup", {LOCATION: [obj]}, lease)
    lease.hold_objs([obj])
    lease.on_close(closed.set)
    assert obj.counts == (0, 0)
    assert closed.is_set()
    assert not leases.has("lookup")
    assert leases.pinned == {}


def test_attempts_of_one_lookup_are_closed_alone_or_together(leases: Any) -> None:
    attempts, objs = [leases.open("lookup") for _ in range(3)], [Counted() for _ in range(3)]
    for attempt, obj in zip(attempts, objs, strict=True):
        leases.hold_pins("lookup", {LOCATION: [obj]}, attempt)
        attempt.hold_objs([obj])
    leases.close_one("lookup", attempts[0])
    assert [obj.counts for obj in objs] == [(0, 0), (1, 1), (1, 1)]
    assert leases.has("lookup")
    leases.close("lookup")
    assert [obj.counts for obj in objs] == [(0, 0)] * 3
    leases.close_one("lookup", attempts[0])
    assert [obj.counts for obj in objs] == [(0, 0)] * 3


def test_a_load_borrows_all_or_nothing(leases: Any) -> None:
    held, foreign = [Counted(), Counted()], Counted()
    take(leases, "lookup", held)
    assert not leases.borrow("lookup", [*held, foreign])
    assert leases.borrow("lookup", held)
    assert [obj.references for obj in held] == [2, 2]
    assert foreign.references == 1
    leases.close("lookup")
    assert [obj.counts for obj in held] == [(1, 0)] * 2
    assert not leases.borrow("lookup", held)


def test_what_is_let_go_early_is_not_released_again(leases: Any) -> None:
    lease, obj = leases.open("lookup"), Counted()
    lease.hold_objs([obj])
    for _ in range(2):
        lease.let_go(obj)
        assert obj.references == 0
    assert not lease.borrow([obj])
    leases.close("lookup")
    assert obj.references == 0


def test_one_that_cannot_be_released_does_not_keep_the_others(leases: Any) -> None:
    class Broken(Counted):
        def unpin(self) -> bool:
            raise RuntimeError("planted")

    objs = [Broken(), Counted()]
    take(leases, "lookup", objs)
    leases.close("lookup")
    assert [obj.references for obj in objs] == [0, 0]
    assert objs[1].pins == 0


def test_threads_that_hold_and_close_at_once_release_each_once(leases: Any) -> None:
    objs = [Counted() for _ in range(4_000)]

    def play(own: list[Counted], seed: int) -> None:
        chance = random.Random(seed)
        while own:
            lookup_id, taken = f"lookup-{chance.randrange(3)}", own[:4]
            del own[:4]
            take(leases, lookup_id, taken)
            if leases.borrow(lookup_id, taken):
                for obj in taken:
                    obj.ref_count_down()
            if chance.random() < 0.5:
                leases.close(f"lookup-{chance.randrange(3)}")

    players = started([functools.partial(play, objs[at::8], at) for at in range(8)])
    for player in players:
        player.result_within(SECONDS, "a thread that holds and closes")
    for lookup in range(3):
        leases.close(f"lookup-{lookup}")
    assert {obj.counts for obj in objs} == {(0, 0)}
    assert leases.pinned == {}
