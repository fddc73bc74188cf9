"""vLLM with two ranks of the same latent KV: exact answers, and proof of where they came from.

The tests of a mode share one deployment and run in this order: the engine was asked everything
twice, restarted, and is now in its second life with an empty local tier.
"""

from __future__ import annotations

import itertools
import re
import time

import pytest

from tests.engine.deployment import LOOKUP_SECONDS, READ_SECONDS, Deployment
from tests.engine.needles import ABORTED, GONE, PROMPTS, SOUND, SPOILT, SWAPPED, chunks, needle
from tests.engine.paged_cache import lacking, paged_digests
from tests.engine.real_engine import START_SECONDS
from tests.engine.settings import CHUNK, RANKS

# The first test of a mode waits for two engines to start.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(2 * START_SECONDS + 120)]

# A recompute on a busy machine.
COMPUTE_SECONDS = 20.0
# Reads that waited for a silent server reach it after all.
LATE_SECONDS = 2.0
# Chunks on their way to a server are held until they are there.
LET_GO_SECONDS = 10.0
WRONG_COUNT = re.compile(r"Double|is negative")
LONG_ANSWER = 200
NOTHING = [0] * RANKS
LAYERS = 2
# The owner of the chunk that is spoilt.
SPOILT_RANK = 1
# Seeds of prompts that were never asked.
FRESH = itertools.count(1000)


def cached(name: str) -> int:
    """Return the tokens that a full hit loads: whole chunks, and never the last token."""
    prompt = PROMPTS[name]
    return min(chunks(prompt) * CHUNK, len(prompt.tokens) - 1)


@pytest.mark.parametrize("name", PROMPTS)
def test_cold(deployed: Deployment, name: str) -> None:
    """Nothing is cached, the answer is exact, and each rank stores what it has to."""
    answer = deployed.cold.answers[name]
    assert answer.cached == 0
    assert answer.tokens == PROMPTS[name].answer
    assert deployed.cold.gets[name] == NOTHING
    assert deployed.cold.sets[name] == deployed.mode.kept(PROMPTS[name])
    assert deployed.cold.lacking[name] == NOTHING


@pytest.mark.parametrize("name", PROMPTS)
def test_from_memory(deployed: Deployment, name: str) -> None:
    """Asked again, all whole chunks come out of the engine's memory: no server is asked."""
    answer = deployed.local.answers[name]
    assert answer.tokens == PROMPTS[name].answer
    assert answer.cached == cached(name)
    assert deployed.local.gets[name] == NOTHING
    assert deployed.local.sets[name] == NOTHING
    assert_whole(name, deployed.local.lacking[name])


@pytest.mark.parametrize("name", SOUND)
def test_from_the_servers(deployed: Deployment, name: str) -> None:
    """After the restart, each rank's server is asked for the chunks that this rank keeps."""
    deployed.servers.reset_calls()
    (answer,) = deployed.engine.ask(PROMPTS[name].tokens)
    assert answer.tokens == PROMPTS[name].answer
    assert answer.cached == cached(name)
    assert deployed.servers.calls("get") == deployed.mode.kept(PROMPTS[name])
    assert_whole(name, lacking(deployed.engine, deployed.servers, deployed.cold.keys[name]))


def test_no_fault_in_the_logs(deployed: Deployment) -> None:
    """No double free or unpin, no time-out, no error: neither life, nor the first one's end."""
    assert deployed.first_faults == []
    assert deployed.engine.faults() == []


@pytest.mark.parametrize("owner", range(RANKS))
def test_another_prompts_chunks_give_a_wrong_answer(deployed: Deployment, owner: int) -> None:
    """The answers come out of the loaded bytes: what is swapped on a server turns them wrong."""
    names, server = SWAPPED[owner], deployed.mode.server(owner)
    deployed.servers.swap(server, *(deployed.cold.keys[name][server] for name in names))
    for name in names:
        (answer,) = deployed.engine.ask(PROMPTS[name].tokens)
        assert answer.cached == cached(name)
        assert answer.tokens != PROMPTS[name].answer


def test_several_at_once(deployed: Deployment) -> None:
    """Requests that load together, two of them the same chunks, do not get each other's."""
    names = ["rank 0's chunk", "rank 1's chunk", "rank 0's chunk", "one chunk"]
    deployed.engine.workers("drop_memory")
    answers = deployed.engine.ask(*(PROMPTS[name].tokens for name in names))
    for name, answer in zip(names, answers, strict=True):
        assert (answer.tokens, answer.cached) == (PROMPTS[name].answer, cached(name))
    assert_settled(deployed)


def test_a_chunk_that_is_gone_before_the_lookup(deployed: Deployment) -> None:
    """What comes before it is loaded, by the ranks that own it, and the rest is computed."""
    server = deployed.mode.server(SPOILT_RANK)
    deployed.servers.delete(server, [min(deployed.cold.keys[GONE][server])])
    deployed.servers.reset_calls()
    before = deployed.engine.recomputed()
    (answer,) = deployed.engine.ask(PROMPTS[GONE].tokens)
    assert answer.tokens == PROMPTS[GONE].answer
    assert deployed.engine.recomputed() == before
    # Names do not say which of the server's chunks it was.
    found, part = divmod(answer.cached, CHUNK)
    possible = deployed.mode.on_server(PROMPTS[GONE], server)
    assert found in possible and part == 0
    if not deployed.mode.loads_ahead:
        assert deployed.servers.calls("get") == [
            len([chunk for chunk in deployed.mode.on_server(PROMPTS[GONE], rank) if chunk < found])
            for rank in range(RANKS)
        ]
    assert_settled(deployed)


@pytest.mark.parametrize("when", ["prefill", "load", "decode"])
def test_abort(deployed: Deployment, when: str) -> None:
    """The prompt of an aborted request is answered exactly, and nothing stays pinned."""
    prompt = needle(200, 4000, 5)
    if when == "load":
        prompt = PROMPTS[ABORTED]
        spoil(deployed, [["CLIENT", "PAUSE", "1000", "ALL"]])
    deployed.engine.abort(
        prompt.tokens, after_tokens=3 * (when == "decode"), after_seconds=0.3 * (when != "decode")
    )
    (answer,) = deployed.engine.ask(prompt.tokens)
    assert answer.tokens == prompt.answer
    assert_settled(deployed)


def test_preemption(deployed: Deployment) -> None:
    """Requests that are thrown out of a full cache and taken in again answer the same."""
    prompts = [needle(300 + number, 1500, number).tokens for number in range(3)]
    alone = [deployed.engine.ask(prompt, count=LONG_ANSWER)[0].tokens for prompt in prompts]
    before = deployed.engine.preemptions
    together = deployed.engine.ask(*prompts, count=LONG_ANSWER)
    assert deployed.engine.preemptions > before, "nothing was preempted"
    assert [answer.tokens for answer in together] == alone
    assert_settled(deployed)


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_between_lookup_and_load(deployed: Deployment, name: str) -> None:
    """What was promised is not there: computed anew, in bounded time, and the next one is sound."""
    server = deployed.mode.server(SPOILT_RANK)
    keys = [key.decode() for key in deployed.cold.keys[name][server]]
    silent_seconds = deployed.mode.read_seconds + READ_SECONDS
    commands = {
        "deleted": [["DEL", *keys]],
        "shortened": [["SET", key, "short"] for key in keys],
        "silent": [["CLIENT", "PAUSE", str(silent_seconds * 1000), "ALL"]],
        "stopped": [["SHUTDOWN", "NOSAVE"]],
    }
    before = deployed.engine.recomputed()
    spoil(deployed, commands[name])
    (answer,) = deployed.engine.ask(PROMPTS[name].tokens)
    assert answer.tokens == PROMPTS[name].answer
    assert answer.seconds < COMPUTE_SECONDS + silent_seconds
    # vLLM goes on to report as cached what it found out to be lost.
    loaded = answer.cached - (deployed.engine.recomputed() - before)
    # The scheduler gives up a lookup whose prefetch hangs, and loads nothing. Its answer comes
    # when the read has timed out, and nobody waits for it any more.
    given_up = deployed.mode.loads_ahead and name == "silent"
    assert not given_up or answer.seconds > LOOKUP_SECONDS
    assert loaded == (0 if given_up else deployed.mode.on_server(PROMPTS[name], server)[0] * CHUNK)
    if name == "silent":
        deployed.servers.wait_for_answer(server)
        time.sleep(LATE_SECONDS)
    if name == "stopped":
        deployed.servers.servers[server].stop()
        deployed.servers.servers[server].start()
    assert_sound(deployed)
    assert_settled(deployed)


def test_no_wrong_count_in_the_logs(deployed: Deployment) -> None:
    """After all of the above, nothing was let go twice."""
    assert [line for line in deployed.engine.faults() if WRONG_COUNT.search(line)] == []


def assert_whole(name: str, lacked: list[int]) -> None:
    """Every rank holds every byte of the prompt's whole chunks, the last token's block apart.

    That token is computed once more if all were loaded, alone, and then rounds differently.
    """
    most = 0 if len(PROMPTS[name].tokens) % CHUNK else LAYERS
    assert max(lacked) <= most, f"blocks that each rank lacks: {lacked}"


def spoil(deployed: Deployment, commands: list[list[str]]) -> None:
    """Send `commands` to a server between the next lookup and the load of what it keeps."""
    server = deployed.mode.server(SPOILT_RANK)
    port = deployed.servers.servers[server].port
    deployed.engine.workers("before_next_read", server, port, commands)


def assert_sound(deployed: Deployment) -> None:
    """A prompt that was never asked is stored, and then answered from memory and servers."""
    prompt = needle(next(FRESH), 1300, 2)
    kept = deployed.mode.kept(prompt)
    expected = [len(keys) + new for keys, new in zip(deployed.servers.keys(), kept, strict=True)]
    for tier, gets in (("cold", NOTHING), ("memory", NOTHING), ("servers", kept)):
        if tier == "servers":
            deployed.servers.wait_for_keys(expected)
            deployed.engine.workers("drop_memory")
        deployed.servers.reset_calls()
        (answer,) = deployed.engine.ask(prompt.tokens)
        found = (answer.tokens, answer.cached, deployed.servers.calls("get"))
        assert found == (prompt.answer, 0 if tier == "cold" else chunks(prompt) * CHUNK, gets)


def assert_settled(deployed: Deployment) -> None:
    """All ranks' paged caches are equal, and no chunk is pinned or held for long.

    The local tier's own hold does not count.
    """
    first, *others = paged_digests(deployed.engine)
    assert all(other == first for other in others), "the ranks hold different KV"
    until = time.monotonic() + LET_GO_SECONDS
    while True:
        ranks = deployed.engine.workers("cache_view")
        if not any(rank["pins"] or rank["extra_refs"] for rank in ranks):
            return
        assert time.monotonic() < until, f"still held {LET_GO_SECONDS:.0f} s later: {ranks}"
        time.sleep(0.2)
