"""The compiled client on a real Valkey: a miss is a miss, a failure fails one key, and the next
command on the same connection works.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.patches.lmcache.chunks import (
    MEDIUM_CHUNK_BYTES,
    REAL_CHUNK_BYTES,
    chunk,
    is_poison,
    poisoned,
)
from tests.patches.lmcache.native import NativeClient, native_client
from tests.valkey_server import ValkeyServer

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_a_missing_key": r"no completion of GET within",
    "test_a_key_deleted_between_exists_and_get": r"no completion of GET within",
    "test_a_key_evicted_between_exists_and_get": r"no completion of GET within",
    "test_a_value_of_another_size": r"the key after the odd one was not|no completion of GET",
    "test_a_full_server": r"the command after the refused one failed",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as running:
        yield running


# From 100 bytes on stock waits for more bytes than a null reply has; below, it gets the miss
# right by luck.
@pytest.mark.parametrize("size", [100, REAL_CHUNK_BYTES])
def test_a_missing_key(server: ValkeyServer, size: int) -> None:
    value = chunk("present", size)
    server.client().set("present", value)
    with native_client(server) as client:
        buffer = poisoned(size)
        assert client.get(["missing"], [buffer])[1:] == (True, "", [False])
        assert is_poison(buffer)
        assert_loads(client, "present", value)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_key_deleted_between_exists_and_get(server: ValkeyServer, workers: int) -> None:
    values = {f"deleted-{i}": chunk(i, MEDIUM_CHUNK_BYTES) for i in range(8)}
    for key, value in values.items():
        server.client().set(key, value)
    with native_client(server, workers) as client:
        assert client.exists(list(values))[3] == [True] * 8
        server.client().delete("deleted-3")
        buffers = [poisoned(MEDIUM_CHUNK_BYTES) for _ in values]
        _, ok, error, loaded = client.get(list(values), buffers)
        assert (ok, error, loaded) == (True, "", [key != "deleted-3" for key in values])
        assert is_poison(buffers.pop(3))
        del values["deleted-3"]
        assert [bytes(buffer) for buffer in buffers] == list(values.values())


def test_a_key_evicted_between_exists_and_get() -> None:
    size = MEDIUM_CHUNK_BYTES
    keys = [f"evicted-{i}" for i in range(6)]
    options = ("--maxmemory", str(16 * size), "--maxmemory-policy", "allkeys-lru")
    with ValkeyServer(*options) as full, native_client(full) as client:
        server_side = full.client()
        for key in keys:
            server_side.set(key, chunk(key, size))
        assert client.exists(keys)[3] == [True] * 6
        written = 0
        while server_side.exists(*keys) == len(keys):
            assert written < 100, "the server never evicted one of the promised keys"
            server_side.set(f"newer-{written}", bytes(size))
            written += 1
        still_there = [bool(server_side.exists(key)) for key in keys]
        buffers = [poisoned(size) for _ in keys]
        assert client.get(keys, buffers)[1:] == (True, "", still_there)
        for key, there, buffer in zip(keys, still_there, buffers, strict=True):
            assert bytes(buffer) == chunk(key, size) if there else is_poison(buffer)


# The drain limit of the client is 64 KiB: below it reads the odd value off the connection,
# above it takes a new connection.
@pytest.mark.parametrize("odd_size", [0, 2, 4095, 4097, 60_000, 1_000_000])
def test_a_value_of_another_size(server: ValkeyServer, odd_size: int) -> None:
    value = chunk("good", 4096)
    server.client().set("good", value)
    server.client().set("odd", bytes([0x5A]) * odd_size)
    with native_client(server) as client:
        odd, good = poisoned(4096), poisoned(4096)
        _, ok, error, loaded = client.get(["odd", "good"], [odd, good])
        assert bytes(good) == value, "the key after the odd one was not loaded"
        assert (ok, loaded) == (True, [False, True])
        assert error == f"key odd: value of {odd_size} bytes where 4096 were expected"
        assert is_poison(odd)
        assert_loads(client, "good", value)


def test_a_full_server() -> None:
    size = 1_000_000
    options = ("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    with ValkeyServer(*options) as full, native_client(full) as client:
        for refused in range(8):
            _, ok, error, _ = client.set([f"key-{refused}"], [bytearray(chunk(refused, size))])
            if not ok:
                break
        assert refused > 0 and not ok, "the server refused nothing, or everything"
        after = client.exists(["key-0", f"key-{refused}"])
        assert after[1:] == (True, "", [True, False]), "the command after the refused one failed"
        assert f"key-{refused}" in error
        assert "OOM" in error
        assert_loads(client, "key-0", chunk(0, size))


def assert_loads(client: NativeClient, key: str, value: bytes) -> None:
    buffer = poisoned(len(value))
    assert client.get([key], [buffer])[1:] == (True, "", [True])
    assert bytes(buffer) == value
