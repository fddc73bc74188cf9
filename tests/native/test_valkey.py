"""The compiled client under AddressSanitizer against a real Valkey."""

from __future__ import annotations

import threading
import time
from typing import cast

import pytest

from headrace.suites.missing_key.values import is_untouched, value_of
from headrace.suites.valkey_server import ValkeyServer
from tests.native.driver import Driver

# A chunk of 256 tokens of the headline model: 78 latent and 22 indexer tensors.
CHUNK = 12_392_448


def test_missing_chunk_is_a_miss_at_once(driver: Driver, valkey_server: ValkeyServer) -> None:
    driver.open(valkey_server.port)
    for _ in range(3):
        done = driver.get(["absent"], CHUNK)
        assert (done.ok, done.bools, done.error) == (True, [False], "")
        assert is_untouched(done.buffers[0])
        assert done.ms < 1000


@pytest.mark.parametrize("size", [1, 9, 10, 99, 100, 4096, 100_000, 1_548_288])
def test_batch_with_a_hole(driver: Driver, valkey_server: ValkeyServer, size: int) -> None:
    keys = [f"hole{size}-{i}" for i in range(5)]
    driver.open(valkey_server.port, workers=2)
    assert driver.set({key: value_of(key, size) for key in keys}).bools == [True] * 5
    assert driver.delete([keys[2], "absent"]).bools == [True, False]
    done = driver.get(keys, size)
    assert (done.ok, done.error) == (True, "")
    assert done.bools == [True, True, False, True, True]
    for key, buffer, loaded in zip(keys, done.buffers, done.bools, strict=True):
        assert buffer == value_of(key, size) if loaded else is_untouched(buffer)
    assert driver.exists(keys).bools == done.bools


def test_a_lookup_makes_a_key_young_and_a_delete_makes_it_gone(
    driver: Driver, valkey_server: ValkeyServer
) -> None:
    client = valkey_server.client()
    driver.open(valkey_server.port)
    client.mset({f"aged{i}": b"value" for i in range(4)})
    time.sleep(2.1)
    assert driver.exists(["aged0", "aged1", "absent"]).bools == [True, True, False]
    idle = [int(cast("int", client.object("idletime", f"aged{i}"))) for i in range(4)]
    assert max(idle[:2]) <= 1
    assert min(idle[2:]) >= 2
    assert driver.delete(["aged0", "absent", "aged2"]).bools == [True, False, True]
    assert driver.exists([f"aged{i}" for i in range(4)]).bools == [False, True, False, True]


def test_empty_value_is_a_value(driver: Driver, valkey_server: ValkeyServer) -> None:
    valkey_server.client().set("empty", b"")
    driver.open(valkey_server.port)
    assert driver.get(["empty", "absent", "empty"], 0).bools == [True, False, True]


@pytest.mark.parametrize("size", [0, 7, 4095, 4097, 70_000, CHUNK])
def test_value_of_another_size(driver: Driver, valkey_server: ValkeyServer, size: int) -> None:
    client = valkey_server.client()
    client.set("other", b"o" * size)
    client.set("good", value_of("good", 4096))
    driver.open(valkey_server.port)
    done = driver.get(["good", "other", "good"], 4096)
    assert done.bools == [True, False, True]
    assert done.error == f"key other: value of {size} bytes where 4096 were expected"
    assert is_untouched(done.buffers[1])
    assert done.buffers[2] == value_of("good", 4096)


def test_value_of_another_type(driver: Driver, valkey_server: ValkeyServer) -> None:
    client = valkey_server.client()
    client.rpush("list", "element")
    client.set("good", value_of("good", 100))
    driver.open(valkey_server.port)
    done = driver.get(["list", "good"], 100)
    assert done.bools == [False, True]
    assert done.error.startswith("key list: WRONGTYPE ")


def test_full_server_refuses_some_keys_and_the_rest_is_tried(driver: Driver) -> None:
    with ValkeyServer("--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as server:
        driver.open(server.port)
        done = driver.set({f"key{i}": 1_000_000 for i in range(6)})
        assert not done.ok
        assert done.bools is not None
        assert done.bools[0]
        assert not done.bools[-1]
        assert "OOM command not allowed" in done.error
        stored = [bool(server.client().exists(f"key{i}")) for i in range(6)]
        assert done.bools == stored
        assert driver.exists([f"key{i}" for i in range(6)]).bools == stored


def test_server_that_restarts_is_found_again(driver: Driver) -> None:
    with ValkeyServer(password="correct-horse") as server:
        driver.open(server.port, workers=2, password="correct-horse")
        for _ in range(2):
            assert driver.set({"key": value_of("key", 100)}).ok
            done = driver.get(["key"], 100)
            assert done.bools == [True]
            server.stop()
            lost = driver.get(["key"], 100)
            assert lost.bools == [False]
            assert "no connection" in lost.error
            server.start()


def test_password_that_the_server_does_not_want(driver: Driver) -> None:
    with ValkeyServer(password="correct-horse") as server:
        driver.open(server.port, password="wrong-horse")
        done = driver.get(["key"], 100)
        assert "AUTH refused: WRONGPASS" in done.error
        assert "horse" not in done.error
        driver.open(server.port)
        assert "NOAUTH Authentication required" in driver.get(["key"], 100).error


def test_paused_server_costs_little_and_recovers(driver: Driver) -> None:
    with ValkeyServer() as server:
        driver.open(server.port, timeout_ms=400)
        assert driver.set({f"key{i}": value_of(f"key{i}", 100) for i in range(20)}).ok
        keys = [f"key{i}" for i in range(20)]
        with server.paused():
            done = driver.get(keys, 100)
            assert done.bools == [False] * 20
            assert done.ms < 1000
        done = driver.get(keys, 100)
        assert done.bools == [True] * 20
        assert done.buffers == [value_of(key, 100) for key in keys]


def test_key_deleted_all_the_time_is_a_hit_or_a_miss(
    driver: Driver, valkey_server: ValkeyServer
) -> None:
    size = 100_000
    value = value_of("flicker", size)
    client = valkey_server.client()
    stop = threading.Event()

    def flicker() -> None:
        while not stop.is_set():
            client.set("flicker", value)
            time.sleep(0.001)
            client.delete("flicker")

    thread = threading.Thread(target=flicker)
    thread.start()
    try:
        driver.open(valkey_server.port, workers=2)
        seen = set()
        for _ in range(100):
            done = driver.get(["flicker"] * 4, size)
            assert done.error == ""
            assert done.bools is not None
            for loaded, buffer in zip(done.bools, done.buffers, strict=True):
                assert buffer == value if loaded else is_untouched(buffer)
                seen.add(loaded)
        assert seen == {True, False}
    finally:
        stop.set()
        thread.join()
