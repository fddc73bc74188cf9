"""A lookup that is given up and asked again: each attempt has its own answers and chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from lmcache.v1.lookup_client.async_lookup_message import (
    LookupCleanupMsg,
    LookupRequestMsg,
    LookupResponseMsg,
)
from lmcache.v1.lookup_client.chunk_statistics_lookup_client import ChunkStatisticsLookupClient
from lmcache.v1.lookup_client.hit_limit_lookup_client import HitLimitLookupClient

from tests.patches.lmcache.deadline import wait_until, within
from tests.patches.lmcache.lookup_ranks import SECONDS, TOKENS, Ranks, lookup_ranks, prompt

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_an_abort_passes_through_a_wrapping_client": r"an abort would raise in the scheduler",
    "test_a_lookup_that_timed_out_is_a_miss": r"asking again raised KeyError",
    "test_a_timeout_gives_late_chunks_back": r"kept the chunks of a lookup that timed out",
    "test_giving_up_gives_the_chunks_back": r"kept the chunks of a lookup that was given up",
    "test_answers_of_two_attempts_are_not_mixed": r"an answer to the attempt before was counted",
    "test_the_next_attempt_keeps_its_chunks": r"the next attempt's chunks are gone",
    "test_asking_anew_replaces_what_was_fetched": r"both attempts' chunks are held",
    "test_an_attempt_that_is_overtaken": r"both attempts' chunks are held",
}

PROMPT = prompt(4)
ALL = len(PROMPT)


@pytest.fixture
def two() -> Iterator[Ranks]:
    """Two ranks whose loads wait."""
    with lookup_ranks(2) as ranks:
        for rank in ranks.ranks:
            rank.tier.waits = True
        yield ranks


def test_a_lookup_that_timed_out_is_a_miss(two: Ranks) -> None:
    two.time_out(PROMPT)
    for _ in range(3):
        try:
            found = two.ask(PROMPT)
        except KeyError as error:
            raise AssertionError("asking again raised KeyError") from error
        assert found == 0
    for rank in two.ranks:
        rank.load_submitted().complete()
    two.nothing_held("kept the chunks of a lookup that timed out")
    assert two.ask(PROMPT) == 0, "a late answer changed the result"
    two.client.clear_lookup_status("a")
    for rank in two.ranks:
        rank.tier.waits = False
    assert two.answer(PROMPT) == ALL, "the next attempt did not succeed"


def test_a_timeout_gives_late_chunks_back(two: Ranks) -> None:
    """The scheduler asks nothing more: it is idle."""
    two.time_out(PROMPT)
    two.client.clear_lookup_status("a")
    for rank in two.ranks:
        rank.load_submitted().complete()
    two.nothing_held("a rank kept the chunks of a lookup that timed out")


@pytest.mark.parametrize(
    ("how", "when"),
    [("abort", "loading"), ("abort", "answered by one rank"), ("abort", "answered"),
     ("preempt", "loading"), ("preempt", "answered by one rank")],
)  # fmt: skip
def test_giving_up_gives_the_chunks_back(two: Ranks, how: str, when: str) -> None:
    """Then the scheduler is idle."""
    assert two.ask(PROMPT) is None
    first, second = (rank.load_submitted() for rank in two.ranks)
    if when != "loading":
        first.complete()
    if when == "answered":
        second.complete()
        assert two.answer(PROMPT) == ALL
    give_up = two.client.cancel_lookup if how == "abort" else two.client.clear_lookup_status
    give_up("a")
    if when == "loading":
        first.complete()
    if when != "answered":
        second.complete()
    two.nothing_held("a rank kept the chunks of a lookup that was given up")


def test_answers_of_two_attempts_are_not_mixed(two: Ranks) -> None:
    """Only the second rank answers: at once, both times."""
    slow, quick = two.ranks
    quick.tier.waits = False
    assert two.ask(PROMPT) is None
    wait_until(lambda: quick.chunks_held() == 4, SECONDS, "the quick rank did not load")
    two.client.clear_lookup_status("a")
    for rank in two.ranks:
        rank.tier.chunks = 2
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        found = two.ask(PROMPT)
        assert found is None, f"an answer to the attempt before was counted: {found}"
    slow.load_submitted(1).complete()
    slow.load_submitted(2).complete()
    assert two.answer(PROMPT) == 2 * TOKENS
    assert [rank.chunks_held() for rank in two.ranks] == [2, 2]


def test_the_next_attempt_keeps_its_chunks(two: Ranks) -> None:
    """Neither the late end of the attempt before nor the cleanup of it concerns the next one."""
    two.time_out(PROMPT)
    two.client.clear_lookup_status("a")
    assert two.ask(PROMPT) is None
    for number in (1, 2):
        for rank in two.ranks:
            rank.load_submitted(number).complete()
    found = None
    until = time.monotonic() + SECONDS
    while found is None and time.monotonic() < until:
        found = two.client.lookup_cache("a")
    assert found == ALL, f"the next attempt's chunks are gone: it was answered {found}"
    # On stock a scheduler that asks for anything sends the cleanup of the first attempt now.
    assert within(SECONDS, "another lookup", lambda: two.client.lookup_cache("b")) == -1
    two.settle()
    held = [rank.chunks_held() for rank in two.ranks]
    assert held == [4, 4], f"the next attempt's chunks are gone: {held} are held"
    assert [rank.retrieve(PROMPT, "a") for rank in two.ranks] == [ALL, ALL]


def test_asking_anew_replaces_what_was_fetched(two: Ranks) -> None:
    """A scheduler that lost its state asks with an id that the ranks hold chunks for."""
    for rank in two.ranks:
        rank.tier.waits = False
    two.client.lookup(PROMPT, "a")
    assert two.answer(PROMPT) == ALL
    two.client.lookup(PROMPT, "a")
    for rank in two.ranks:
        rank.load_submitted(2)
    assert two.answer(PROMPT) == ALL
    two.settle()
    held = [rank.chunks_held() for rank in two.ranks]
    assert held == [4, 4], f"both attempts' chunks are held: {held}"


def test_an_attempt_that_is_overtaken(two: Ranks) -> None:
    """The second attempt is answered while the first still looks its chunks up."""
    for rank in two.ranks:
        rank.tier.waits, rank.tier.lookups_wait = False, True
    assert two.ask(PROMPT) is None
    first = [rank.lookup_submitted() for rank in two.ranks]
    two.client.clear_lookup_status("a")
    for rank in two.ranks:
        rank.tier.lookups_wait = False
    assert two.answer(PROMPT) == ALL
    for lookup in first:
        lookup.complete()
    two.settle()
    held = [rank.chunks_held() for rank in two.ranks]
    assert held == [4, 4], f"both attempts' chunks are held: {held}"
    assert [rank.retrieve(PROMPT, "a") for rank in two.ranks] == [ALL, ALL]


@pytest.mark.patched_only(reason="on stock the first attempt's event takes the place as well")
def test_an_attempt_that_is_overtaken_between_two_tiers() -> None:
    """The first has loads of one tier and still asks the other when the second waits for loads."""
    with lookup_ranks(chunks=2) as ranks:
        [rank] = ranks.ranks
        behind = rank.add_tier(2)
        rank.tier.waits, behind.lookups_wait = True, True
        assert ranks.ask(PROMPT) is None
        wait_until(lambda: bool(behind.lookups), SECONDS, "the second tier was not asked")
        ranks.client.clear_lookup_status("a")
        behind.lookups_wait = False
        assert ranks.ask(PROMPT) is None
        wait_until(lambda: len(behind.lookups) == 2, SECONDS, "the second tier was not asked")
        ranks.settle()
        behind.lookups[0].complete()
        ranks.settle()
        for number in (1, 2):
            rank.load_submitted(number).complete()
        assert ranks.answer(PROMPT) == ALL, "the first attempt's end was taken for the second's"
        assert rank.retrieve(PROMPT, "a") == ALL


@pytest.mark.patched_only(reason="on stock a request's end forgets a prefetch that is running")
def test_a_lookup_that_a_worker_ended_promises_nothing(two: Ranks) -> None:
    assert two.ask(PROMPT) is None
    loads = [rank.load_submitted() for rank in two.ranks]
    two.ranks[1].engine.lookup_unpin("a")
    for load in loads:
        load.complete()
    assert two.answer(PROMPT) == 0, "chunks were promised that are gone"


@pytest.mark.patched_only(reason="the pinned release has no attempts")
def test_a_cleanup_of_an_earlier_attempt_frees_nothing(two: Ranks) -> None:
    for rank in two.ranks:
        rank.tier.waits = False
    two.client.lookup(PROMPT, "a")
    earlier = two.client.attempts.get("a").number
    two.client.lookup(PROMPT, "a")
    assert two.answer(PROMPT) == ALL
    two.client._send_cleanup_message("a", earlier)
    # Messages keep their order: when this one has been served, so has that cleanup.
    assert two.answer(PROMPT, "b") == ALL
    assert [rank.chunks_held() for rank in two.ranks] == [8, 8]
    for lookup_id in ("a", "b"):
        two.client.cancel_lookup(lookup_id)
    two.nothing_held("chunks were not given back")
    assert not any(rank.tier.pins for rank in two.ranks), "pins were not given back"
    leases = two.ranks[0].engine.lookup_leases
    assert not leases._leases, "the worker remembers what is over"
    assert not two.client.attempts._attempts, "the scheduler remembers what is over"


@pytest.mark.patched_only(reason="the pinned release has no attempts")
def test_a_lookup_given_up_before_it_began_asks_no_tier() -> None:
    with lookup_ranks() as ranks:
        [rank] = ranks.ranks
        manager = rank.engine.storage_manager
        began = manager.async_lookup_and_prefetch

        async def overtaken(lookup_id: str, *rest: object, **options: object) -> None:
            rank.engine.lookup_unpin(lookup_id)
            await began(lookup_id, *rest, **options)

        manager.async_lookup_and_prefetch = overtaken
        ranks.client.lookup(PROMPT, "a")
        manager.async_lookup_and_prefetch = began
        assert ranks.answer(PROMPT, "b") == ALL
        assert len(rank.tier.loads) == 1
        assert rank.chunks_held() == 4
        assert ranks.answer(PROMPT, "a") == 0, "each request has an answer"


@pytest.mark.patched_only(reason="holds on stock; messages of both kinds must be understood")
def test_messages_without_a_number(two: Ranks) -> None:
    request = {"type": "LookupRequestMsg", "lookup_id": "a", "hashes": [1], "offsets": [TOKENS]}
    response = {"type": "LookupResponseMsg", "lookup_id": "a", "num_hit_tokens": 7}
    cleanup = {"type": "LookupCleanupMsg", "lookup_id": "a"}
    for fields, kind in [
        (request, LookupRequestMsg), (response, LookupResponseMsg), (cleanup, LookupCleanupMsg)
    ]:  # fmt: skip
        message = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=kind)
        assert message.attempt == 0
    assert two.ask(PROMPT) is None
    for rank in two.ranks:
        rank.server.send_response_to_scheduler("a", ALL)
    assert two.answer(PROMPT) == ALL


@pytest.mark.parametrize("wrapper", [HitLimitLookupClient, ChunkStatisticsLookupClient])
def test_an_abort_passes_through_a_wrapping_client(wrapper: Any) -> None:
    class Wrapped:
        cancelled: str | None = None

        def cancel_lookup(self, lookup_id: str) -> None:
            self.cancelled = lookup_id

    client = object.__new__(wrapper)
    client.actual_lookup_client = wrapped = Wrapped()
    assert hasattr(client, "cancel_lookup"), "an abort would raise in the scheduler"
    client.cancel_lookup("request")
    assert wrapped.cancelled == "request"
