"""Every reply to every command, at every place of a batch, in pieces, late and cut off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.suites.missing_key.replies import COMMANDS, REPLIES, Command, Reply
from headrace.suites.missing_key.scripted_server import Script, ScriptedServer
from headrace.suites.missing_key.values import is_untouched, value_of
from tests.native.driver import Done, Driver

# From 100 bytes on the release waits for more header than a null reply has.
SIZE = 100
BATCH = 3
TIMEOUT_MS = 400
# A client that waits for the socket time-out once stays below; one that does so per key does not.
BOUND_MS = 2.5 * TIMEOUT_MS
AFTER = "after"
# Replies up to this length are split and cut at every byte, longer ones near both ends.
EVERY_BYTE = 2 * SIZE
EDGE = 12


@dataclass(frozen=True)
class Delivery:
    """How the reply travels; `complete` tells whether all of it arrives."""

    name: str
    script: Script
    complete: bool = True


@pytest.fixture(scope="module")
def shared_driver(address_program: Path) -> Iterator[Driver]:
    """One process, so that each case starts with the connection that the last one left."""
    with Driver(address_program) as driver:
        yield driver


@pytest.fixture(scope="module")
def server(shared_driver: Driver) -> Iterator[ScriptedServer]:
    with ScriptedServer({AFTER: value_of(AFTER, SIZE)}) as server:
        shared_driver.open(server.endpoint.port, timeout_ms=TIMEOUT_MS)
        yield server


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.name)
def test_reply(
    shared_driver: Driver, server: ScriptedServer, command: Command, reply: Reply
) -> None:
    wire = reply.bytes_for(value_of("scripted", SIZE))
    stalls = False
    for place in range(BATCH):
        done = _meet(shared_driver, server, command, reply, place, Delivery("", Script((wire,))))
        stalls = done.ms >= TIMEOUT_MS
    for number, delivery in enumerate(_deliveries(wire, stalls, reply.whole_only)):
        _meet(shared_driver, server, command, reply, number % BATCH, delivery)


def _deliveries(wire: bytes, stalls: bool, whole_only: bool) -> Iterator[Delivery]:
    inside = range(1, len(wire))
    if stalls:  # each takes a whole time-out, and what is missing is missing wherever it is split
        places: list[int] = sorted({1, len(wire) // 2, len(wire) - 1} & set(inside))
    elif len(wire) <= EVERY_BYTE:
        places = list(inside)
    else:
        places = [at for at in inside if at <= EDGE or at >= len(wire) - EDGE]
    for at in () if whole_only else places:
        yield Delivery(f"split at {at}", Script((wire[:at], wire[at:]), pause=0.001))
    if not whole_only and not stalls:
        half = len(wire) // 2
        late = TIMEOUT_MS / 1000 / 4
        yield Delivery("late", Script((wire,), delay=late))
        yield Delivery("late in the middle", Script((wire[:half], wire[half:]), pause=late))
    if not whole_only:
        for at in (0, *places):
            yield Delivery(f"cut off at {at}", Script((wire[:at],), close=True), complete=False)
    yield Delivery("whole, then closed", Script((wire,), close=True), complete=not stalls)


def _meet(
    driver: Driver,
    server: ScriptedServer,
    command: Command,
    reply: Reply,
    place: int,
    delivery: Delivery,
) -> Done:
    keys = [f"key{index}" for index in range(BATCH)]
    keys[place] = "scripted"
    held = (AFTER,) if command == "SET" else (AFTER, *keys)
    server.store = {key: value_of(key, SIZE) for key in held}
    server.scripts = {(command, "scripted"): delivery.script}
    server.commands.clear()
    done = _run(driver, command, keys)

    where = f"{delivery.name}, place {place}: {done}"
    asked = {sent for sent, _ in server.commands}
    assert asked == {"TOUCH" if command == "LOOKUP" else command}, where
    meaning = reply.meaning(command) if delivery.complete else "failed"
    wanted = [True] * BATCH
    wanted[place] = meaning == "yes"
    assert done.bools == wanted, where
    assert done.ok == (command != "SET" or meaning == "yes"), where
    assert done.ms < BOUND_MS, where
    if meaning == "failed":
        assert done.error.startswith("key scripted: "), where
        assert "; " not in done.error, where
        if delivery.complete:
            assert reply.words in done.error, where
    else:
        assert done.error == "", where
    for index, buffer in enumerate(done.buffers):
        _check_buffer(buffer, keys[index], meaning if index == place else "yes", where)
    if command == "SET":
        stored = {key for key in keys if key in server.store}
        assert stored == set(keys) - {"scripted"}, where
        for key in stored:
            assert server.store[key] == value_of(key, SIZE), where
    if command == "DEL":
        assert set(server.store) == {AFTER, "scripted"}, where

    after = driver.get([AFTER], SIZE)
    assert (after.bools, after.error) == ([True], ""), f"after {where}: {after}"
    assert after.buffers == [value_of(AFTER, SIZE)], f"after {where}"
    assert after.ms < BOUND_MS, f"after {where}: {after}"
    return done


def _run(driver: Driver, command: Command, keys: list[str]) -> Done:
    if command == "GET":
        return driver.get(keys, SIZE)
    if command == "SET":
        return driver.set({key: value_of(key, SIZE) for key in keys})
    return driver.exists(keys) if command == "LOOKUP" else driver.delete(keys)


def _check_buffer(buffer: bytes, key: str, meaning: str, where: str) -> None:
    """A loaded key has its value; any other at most the start of what was sent for it."""
    if meaning == "yes":
        assert buffer == value_of(key, SIZE), where
        return
    received = len(buffer)
    while received and is_untouched(buffer[received - 1 :]):
        received -= 1
    sent = (value_of(key, SIZE), b"the first few bytes")
    assert any(one.startswith(buffer[:received]) for one in sent), where
    if meaning == "no":
        assert is_untouched(buffer), where
