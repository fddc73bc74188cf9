"""Cases against a real Valkey: keys that vanish, are refused, or hold what cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from headrace.suites.missing_key.case import Case, Seen, Surroundings, UnreachedError
from headrace.suites.missing_key.case import WrongError as Wrong
from headrace.suites.missing_key.control import control
from headrace.suites.missing_key.native import NativeClient, check_get, load_good, store_good
from headrace.suites.missing_key.values import poisoned, value_of

_EVICTING_VALUE = 1_572_864
_EVICTING_WRITES = 400


def lost_key_cases() -> Iterator[Case]:
    """Yield the cases of this file."""
    yield Case(
        "gone/deleted between lookup and GET",
        "the lookup finds it, GET misses it, the next GET loads",
        _deleted_between,
    )
    yield Case(
        "gone/evicted by LRU between lookup and GET",
        "the lookup finds it, GET misses it, the next GET loads",
        _evicted_between,
        needs="evicting",
        seconds=60,
    )
    yield Case(
        "refused/SET at maxmemory",
        "SET fails with the server's OOM text, then a lookup and a GET of an older key work",
        _out_of_memory,
        needs="small",
    )
    for kind, other in (("shorter", 100), ("longer", 5000), ("empty", 0), ("much longer", 12**6)):
        yield Case(
            f"unusable/value {kind}",
            "that key fails with its text, the keys around it and the next GET load",
            partial(_other_size, other=other),
        )
    yield Case(
        "unusable/key of another type",
        "that key fails with the server's WRONGTYPE text, the next GET loads",
        _other_type,
    )


def _deleted_between(around: Surroundings) -> Seen:
    keys = [f"{around.prefix}between-{index}" for index in range(3)]
    with NativeClient(around.main, around.patience) as client, control(around.main) as server:
        store_good(client, keys, 1_572_864)
        found = client.exists(keys).bools
        if found != [True] * 3:
            raise Wrong(f"a lookup of three present keys gave {found}")
        server.delete(keys[1])
        buffers = [poisoned(1_572_864) for _ in keys]
        completion = client.get(keys, buffers)
        check_get(completion, keys, buffers, [True, False, True], untouched=True)
        load_good(client, keys[2], 1_572_864, "missed")
    return Seen("found, then missed, then loaded", completion.ms)


def _evicted_between(around: Surroundings) -> Seen:
    size = _EVICTING_VALUE
    key = f"{around.prefix}old"
    server = around.private["evicting"]
    with NativeClient(server, around.patience) as client, control(server) as owner:
        store_good(client, [key], size)
        if client.exists([key]).bools != [True]:
            raise Wrong("the lookup does not find a key that was just stored")
        for index in range(_EVICTING_WRITES):
            newest = f"{around.prefix}new-{index}"
            store_good(client, [newest], size)
            if not owner.exists(key):
                break
        else:
            raise UnreachedError(f"{_EVICTING_WRITES} writes did not evict the key")
        buffer = poisoned(size)
        completion = client.get([key], [buffer])
        check_get(completion, [key], [buffer], [False], untouched=True)
        load_good(client, newest, size, "missed")
    return Seen(f"found, evicted by {index + 1} writes, missed, loaded", completion.ms)


def _out_of_memory(around: Surroundings) -> Seen:
    server = around.private["small"]
    old = f"{around.prefix}old"
    with NativeClient(server, around.patience) as client:
        store_good(client, [old], 4096)
        for index in range(8):
            big = f"{around.prefix}big-{index}"
            refused = client.set([big], [value_of(big, 1_000_000)])
            if not refused.ok:
                break
        else:
            raise UnreachedError("8 MB were stored in a server of 3 MB")
        if "OOM" not in refused.error:
            raise Wrong(f"SET failed, but without the server's words: {refused.error!r}")
        found = client.exists([old])
        if found.bools != [True]:
            raise Wrong(f"then a lookup of an older key gave {found.bools} ({found.error})")
        load_good(client, old, 4096, "refused")
    return Seen("refused with OOM, then found and loaded", refused.ms)


def _other_size(around: Surroundings, other: int) -> Seen:
    keys = [f"{around.prefix}other-{index}" for index in range(3)]
    with NativeClient(around.main, around.patience) as client, control(around.main) as server:
        store_good(client, keys, 4096)
        server.set(keys[1], b"o" * other)
        return _fails_alone(client, keys, "")


def _other_type(around: Surroundings) -> Seen:
    keys = [f"{around.prefix}type-{index}" for index in range(3)]
    with NativeClient(around.main, around.patience) as client, control(around.main) as server:
        store_good(client, keys, 4096)
        server.delete(keys[1])
        server.rpush(keys[1], "an element")
        return _fails_alone(client, keys, "WRONGTYPE")


def _fails_alone(client: NativeClient, keys: list[str], words: str) -> Seen:
    """GET three keys of 4096 bytes of which the middle one cannot be used."""
    buffers = [poisoned(4096) for _ in keys]
    completion = client.get(keys, buffers)
    check_get(completion, keys, buffers, [True, False, True])
    if keys[1] not in completion.error or words not in completion.error:
        raise Wrong(f"the error text does not name the key and the reason: {completion.error!r}")
    load_good(client, keys[0], 4096, "failed alone")
    return Seen(f"failed alone: {completion.error}", completion.ms)
