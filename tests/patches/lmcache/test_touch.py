"""A lookup refreshes what it promises: on the wire, in a key's age, and in what is left to load."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.suites.missing_key.scripted_server import Script, ScriptedServer
from tests.patches.lmcache.chunks import chunk
from tests.patches.lmcache.deadline import started, within
from tests.patches.lmcache.engine import Engine, engine, key
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_every_way_to_look_up_sends_touch": r"asked with EXISTS",
    "test_a_refused_touch_is_a_failed_lookup_of_that_key": r"asked with EXISTS",
    "test_a_lookup_makes_a_key_young": r"seconds old after the lookup",
    "test_promised_chunks_outlive_eviction": r"promised chunks are gone after the engine's lookup",
}

SECONDS = 10.0
LOOKUPS: dict[str, Callable[[Engine, list[Any]], int]] = {
    "batched": lambda rank, keys: rank.backend.batched_contains(keys),
    "asynchronous": lambda rank, keys: rank.storage.run(
        SECONDS, "the lookup", lambda: rank.backend.batched_async_contains("lookup", keys)
    ),
    "one by one": lambda rank, keys: sum(rank.backend.contains(each) for each in keys),
}
each_way = pytest.mark.parametrize("way", LOOKUPS)

# The full server of the eviction test: it holds some 700 of these, and 120 writes push out as many.
VALUE_BYTES = 65_536
MAXMEMORY = "48mb"
WRITES = 120
PROMISED = 60
ROUNDS = 6
LOOKUP_TRIES = 5
# Some 20 on two quiet cores, twice that beside other files.
EVICTION_SECONDS = 180.0
# A key's age has a resolution of one second: a lookup that follows faster changes nothing.
AGEING_SECONDS = 1.2


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    with ScriptedServer({key(index).to_string(): b"" for index in range(4)}) as running:
        yield running


def look_up(rank: Engine, way: str, keys: list[Any]) -> int:
    return within(SECONDS, "the lookup", lambda: LOOKUPS[way](rank, keys))


@each_way
def test_every_way_to_look_up_sends_touch(scripted: ScriptedServer, way: str) -> None:
    with engine(f"127.0.0.1:{scripted.endpoint.port}") as rank:
        found = look_up(rank, way, [key(index) for index in range(5)])
    sent = {command for command, _ in scripted.commands}
    assert sent == {"TOUCH"}, f"asked with {', '.join(sorted(sent))}"
    assert len(scripted.commands) == 5
    assert found == 4


@each_way
def test_a_refused_touch_is_a_failed_lookup_of_that_key(scripted: ScriptedServer, way: str) -> None:
    refusal = b"-NOPERM User default has no permissions to run the 'touch' command\r\n"
    scripted.scripts["LOOKUP", key(2).to_string()] = Script((refusal,))
    with engine(f"127.0.0.1:{scripted.endpoint.port}") as rank:
        found = look_up(rank, way, [key(index) for index in range(4)])
        sent = {command for command, _ in scripted.commands}
        assert sent == {"TOUCH"}, f"asked with {', '.join(sorted(sent))}"
        assert len(scripted.commands) == 4, "the refused key was asked for in another way"
        assert found == (3 if way == "one by one" else 2)
        # Nothing is remembered: who may touch again finds it again.
        del scripted.scripts["LOOKUP", key(2).to_string()]
        assert look_up(rank, way, [key(index) for index in range(4)]) == 4


def test_a_lookup_makes_a_key_young() -> None:
    with (
        ValkeyServer("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru") as server,
        engine(f"{server.host}:{server.port}") as rank,
    ):
        client = server.client()
        for index in range(len(LOOKUPS) + 1):
            client.set(key(index).to_string(), b"value")
        time.sleep(2.2)

        def age(index: int) -> int:
            seconds: Any = client.object("idletime", key(index).to_string())
            return int(seconds)

        assert age(0) >= 2
        for index, way in enumerate(LOOKUPS, start=1):
            assert look_up(rank, way, [key(index)]) == 1
            assert age(index) <= 1, f"{age(index)} seconds old after the lookup ({way})"
        assert age(0) >= 2


def gone_at_load(lookup: str) -> int:
    """Return how many of ROUNDS * PROMISED chunks a full server has dropped before their load.

    Args:
        lookup: "TOUCH", as the engine looks up; or "EXISTS", sent by another client.
    """
    some = random.Random(1)
    gone = 0
    with (
        ValkeyServer("--maxmemory", MAXMEMORY, "--maxmemory-policy", "allkeys-lru") as server,
        engine(f"{server.host}:{server.port}", chunk_bytes=VALUE_BYTES) as rank,
    ):
        client = server.client()
        keys = {key(index).to_string(): key(index) for index in range(5000)}
        unwritten = iter(keys)

        def write(count: int) -> None:
            for name in itertools.islice(unwritten, count):
                client.set(name, chunk(name, VALUE_BYTES))

        def evicted() -> int:
            stats: Any = client.info("stats")
            return int(stats["evicted_keys"])

        while evicted() < WRITES:
            write(WRITES)

        def promised() -> list[str]:
            held: Any = client.keys()
            names = some.sample(sorted(name.decode() for name in held), PROMISED)
            if lookup == "TOUCH":
                found: Any = rank.backend.batched_contains([keys[name] for name in names])
            else:
                found = client.exists(*names)
            return names if found == PROMISED else []

        for _ in range(ROUNDS):
            time.sleep(AGEING_SECONDS)
            # The reply to KEYS takes memory of a full server: it may drop one of these for it.
            names = next(filter(None, (promised() for _ in range(LOOKUP_TRIES))), [])
            assert names, f"{lookup}: the server drops keys without being written to"
            time.sleep(AGEING_SECONDS)
            write(WRITES)
            left: Any = client.exists(*names)
            gone += PROMISED - int(left)
    return gone


def test_promised_chunks_outlive_eviction() -> None:
    """Both ways at once, on a server each; the numbers are printed."""
    with_touch, with_exists = started(
        [lambda: gone_at_load("TOUCH"), lambda: gone_at_load("EXISTS")]
    )
    touched = with_touch.result_within(EVICTION_SECONDS, "the run with TOUCH")
    existed = with_exists.result_within(EVICTION_SECONDS, "the run with EXISTS")
    all_of_them = ROUNDS * PROMISED
    print(
        f"promised chunks gone at load after {WRITES} writes to a full server: "
        f"EXISTS {existed} of {all_of_them} ({existed / all_of_them:.1%}), "
        f"TOUCH {touched} ({touched / all_of_them:.1%})"
    )
    assert existed >= all_of_them * 0.06, f"only {existed} gone with EXISTS: nothing to save"
    assert touched <= existed / 4, (
        f"{touched} of {all_of_them} promised chunks are gone after the engine's lookup, "
        f"{existed} after EXISTS"
    )
