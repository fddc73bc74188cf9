"""A lookup that fails on a rank is answered at once, and what it had fetched goes back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.patches.lmcache.deadline import wait_until
from tests.patches.lmcache.engine import key
from tests.patches.lmcache.lookup_ranks import SECONDS, TOKENS, Rank, Ranks, lookup_ranks, prompt

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_a_failure_is_answered_at_once": r"lookup \w+ had no answer",
    "test_a_tier_whose_lookup_fails_is_empty": r"lookup a had no answer",
    "test_what_came_before_the_failure_counts": r"lookup a had no answer",
    "test_a_failure_answers_the_first_entry": r"the failure was not answered",
    "test_an_answer_that_could_not_be_sent": r"lookup a had no answer",
}

PROMPT = prompt(4)
ALL = len(PROMPT)
BROKEN = RuntimeError("broken on purpose")
# An answer takes some milliseconds. On stock each failure costs all of this.
AT_ONCE = 3.0


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    """Two ranks that all failures happen to, one after the other."""
    with lookup_ranks(2) as ranks:
        yield ranks


def fail(*_: object, **__: object) -> Any:
    raise BROKEN


def no_chunks(*_: object) -> Any:
    async def loaded() -> None: ...

    return loaded()


def lookup_fails(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.tier, "lookup_error", BROKEN)


def load_fails(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.tier, "load_error", BROKEN)


def load_is_cancelled(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.tier, "load_error", asyncio.CancelledError())


def load_returns_nothing(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.tier, "batched_get_non_blocking", no_chunks)


def load_is_not_started(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.tier, "batched_get_non_blocking", fail)


def event_is_refused(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.engine.event_manager, "add_event", fail)


def event_is_lost(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.engine.event_manager, "update_event_status", fail)


def keys_cannot_be_made(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.engine.token_database, "process_tokens", fail)


def rank_is_not_initialised(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.engine, "storage_manager", None)


def loop_takes_nothing(rank: Rank, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rank.engine.storage_manager.loop, "call_soon_threadsafe", fail)


FAULTS = [
    lookup_fails, load_fails, load_is_cancelled, load_returns_nothing, load_is_not_started,
    event_is_refused, event_is_lost, keys_cannot_be_made, rank_is_not_initialised,
    loop_takes_nothing,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_failure_is_answered_at_once(
    two: Ranks, fault: Callable[[Rank, pytest.MonkeyPatch], None]
) -> None:
    broken, sound = two.ranks
    with pytest.MonkeyPatch.context() as patch:
        fault(broken, patch)
        assert two.answer(PROMPT, fault.__name__, AT_ONCE) == 0
    # The scheduler computes the prompt; what the sound rank has fetched goes at the request's end.
    wait_until(lambda: sound.chunks_held() == 4, SECONDS, "the sound rank did not load")
    sound.engine.lookup_unpin(fault.__name__)
    two.nothing_held("a rank kept chunks of the lookup that failed")
    assert two.answer(PROMPT, "next") == ALL, "the next lookup does not work"
    two.client.cancel_lookup("next")
    two.nothing_held("a rank kept chunks of the next lookup")


def test_a_tier_whose_lookup_fails_is_empty() -> None:
    """Tiers that hold two chunks, one, and one: the second fails."""
    with lookup_ranks(chunks=2) as ranks:
        [rank] = ranks.ranks
        failing, _ = rank.add_tier(1), rank.add_tier(1)
        failing.lookup_error = BROKEN
        assert ranks.answer(PROMPT, seconds=AT_ONCE) == 3 * TOKENS
        assert rank.retrieve(PROMPT, "a") == 3 * TOKENS


def test_what_came_before_the_failure_counts() -> None:
    """Tiers that hold two chunks, one, and one: the second fails, the third is slow."""
    with lookup_ranks(chunks=2) as ranks:
        [rank] = ranks.ranks
        failing, slow = rank.add_tier(1), rank.add_tier(1)
        failing.load_error, slow.waits = BROKEN, True
        # Otherwise one tier waits for the other.
        rank.engine.storage_manager.async_serializer.run = lambda load, _: load
        assert ranks.answer(PROMPT, seconds=AT_ONCE) == 2 * TOKENS
        slow.loads[0].complete()
        wait_until(lambda: rank.chunks_held() == 2, SECONDS, "the chunk behind the gap was kept")
        assert rank.retrieve(PROMPT, "a") == 2 * TOKENS
        rank.engine.lookup_unpin("a")
        ranks.nothing_held("chunks of the lookup were kept")
        assert [tier.pins for tier in rank.tiers] == [0, 0, 0]


@pytest.mark.parametrize("fault", [load_fails, load_is_not_started], ids=lambda f: f.__name__)
def test_a_failure_answers_the_first_entry(
    fault: Callable[[Rank, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that owns some chunks is sure of those before its first."""

    class Answers(list[tuple[object, ...]]):
        def send_response_to_scheduler(self, *answer: object) -> None:
            self.append(answer)

    with lookup_ranks() as ranks:
        manager = ranks.ranks[0].engine.storage_manager
        fault(ranks.ranks[0], monkeypatch)
        manager.async_lookup_server = answers = Answers()
        lookup = manager.async_lookup_and_prefetch("a", [key(1), key(3)], [16, 48, 64])
        asyncio.run_coroutine_threadsafe(lookup, manager.loop)
        wait_until(lambda: bool(answers), AT_ONCE, "the failure was not answered")
        assert answers == [("a", 16)]


@pytest.mark.parametrize("found", [0, 4])
def test_an_answer_that_could_not_be_sent(found: int) -> None:
    """What was to be promised is gone by then, so the next answer promises nothing."""
    with lookup_ranks(chunks=found) as ranks:
        [rank] = ranks.ranks
        send, left = rank.server.send_response_to_scheduler, [BROKEN]

        def send_after_an_error(*answer: object) -> None:
            if left:
                raise left.pop()
            send(*answer)

        rank.server.send_response_to_scheduler = send_after_an_error
        assert ranks.answer(PROMPT, seconds=AT_ONCE) == 0
        ranks.nothing_held("chunks that nobody heard of were kept")
        assert ranks.answer(PROMPT, "b") == found * TOKENS


@pytest.mark.patched_only(reason="on stock only one thread sends")
def test_one_thread_at_a_time_sends(two: Ranks) -> None:
    rank = two.ranks[0]
    socket, inside, most = rank.server.push_socket, threading.Semaphore(1), []

    class Watched:
        def send(self, message: bytes, copy: bool = True) -> None:
            alone = inside.acquire(blocking=False)
            time.sleep(0.05)
            most.append(alone)
            socket.send(message, copy=copy)
            if alone:
                inside.release()

    process = rank.engine.token_database.process_tokens
    asked = iter(range(100))

    def every_second_fails(**tokens: object) -> Any:
        return fail() if next(asked) % 2 else process(**tokens)

    rank.server.push_socket = Watched()
    rank.engine.token_database.process_tokens = every_second_fails
    lookups = [f"lookup {number}" for number in range(10)]
    for each in lookups:
        assert two.ask(PROMPT, each) is None
    assert [two.answer(PROMPT, each) for each in lookups] == [ALL, 0] * 5
    rank.server.push_socket = socket
    assert most == [True] * 10, "two threads were in send() together"
