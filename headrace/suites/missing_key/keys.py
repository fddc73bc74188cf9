"""Cases against a real Valkey: keys that are missing, gone, evicted, refused, of another size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import valkey

from headrace.suites.missing_key.case import Case, Endpoint, Seen, Surroundings, UnreachedError
from headrace.suites.missing_key.case import WrongError as Wrong
from headrace.suites.missing_key.native import NativeClient, check_get, load_good, store_good
from headrace.suites.missing_key.values import poisoned, value_of

# 99 bytes is the largest value whose header is as long as a null reply; the last is the chunk of
# 256 tokens of the deployment that headrace serves.
SIZES = (99, 100, 4096, 1_572_864, 12_392_448)
BATCH = 5

_EVICTING_VALUE = 1_572_864
_EVICTING_WRITES = 400


def key_cases() -> Iterator[Case]:
    """Yield the cases of this file."""
    miss = "a miss without error text, its buffer untouched; the next GET loads"
    for size in SIZES:
        yield Case(f"missing/{size} bytes", miss, partial(_missing, size=size))
    for position in range(BATCH):
        yield Case(
            f"missing/key {position + 1} of {BATCH}",
            "that key missed, the others loaded; the next GET loads",
            partial(_missing_in_batch, missing={position}),
        )
    yield Case(
        f"missing/all {BATCH} of {BATCH}",
        "every key missed; the next GET loads",
        partial(_missing_in_batch, missing=set(range(BATCH))),
    )
    yield Case("missing/twice on one connection", miss, _missing_twice)
    yield Case(
        "missing/every third of 96 keys, 8 workers",
        "those missed, the others loaded",
        _missing_in_many,
    )
    yield Case(
        "missing/EXISTS and DEL",
        "absent and not deleted, without error text; the next GET loads",
        _exists_and_delete,
    )
    yield Case(
        "gone/deleted between EXISTS and GET",
        "EXISTS finds it, GET misses it, the next GET loads",
        _deleted_between,
    )
    yield Case(
        "gone/evicted by LRU between EXISTS and GET",
        "EXISTS finds it, GET misses it, the next GET loads",
        _evicted_between,
        needs="evicting",
        seconds=60,
    )
    yield Case(
        "refused/SET at maxmemory",
        "SET fails with the server's OOM text, then EXISTS and GET of an older key work",
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


@contextmanager
def control(server: Endpoint) -> Iterator[valkey.Valkey]:
    """Yield an independent client, to arrange what the server holds."""
    client = valkey.Valkey(
        host=server.host, port=server.port, socket_timeout=30,
        username=server.username or None, password=server.password or None,
    )  # fmt: skip
    try:
        yield client
    finally:
        client.connection_pool.disconnect()


def _missing(around: Surroundings, size: int) -> Seen:
    present, absent = f"{around.prefix}size-{size}", f"{around.prefix}absent"
    with NativeClient(around.main, around.patience) as client:
        store_good(client, [present], size)
        buffer = poisoned(size)
        completion = client.get([absent], [buffer])
        check_get(completion, [absent], [buffer], [False], untouched=True)
        if completion.error:
            raise Wrong(f"a miss with an error text: {completion.error}")
        load_good(client, present, size, "missed")
    return Seen("missed, then loaded", completion.ms)


def _missing_in_batch(around: Surroundings, missing: set[int]) -> Seen:
    keys = [f"{around.prefix}batch-{index}" for index in range(BATCH)]
    after = f"{around.prefix}batch-after"
    with NativeClient(around.main, around.patience) as client:
        store_good(client, [*keys, after], 4096)
        deleted = client.delete([keys[index] for index in sorted(missing)])
        if deleted.bools != [True] * len(missing):
            raise Wrong(f"DEL of {len(missing)} present keys gave {deleted.bools}")
        buffers = [poisoned(4096) for _ in keys]
        completion = client.get(keys, buffers)
        check_get(completion, keys, buffers, [i not in missing for i in range(BATCH)], True)
        load_good(client, after, 4096, "batch as expected")
    return Seen(f"{BATCH - len(missing)} loaded, {len(missing)} missed", completion.ms)


def _missing_twice(around: Surroundings) -> Seen:
    absent, present = f"{around.prefix}absent", f"{around.prefix}twice"
    with NativeClient(around.main, around.patience) as client:
        store_good(client, [present], 4096)
        for _ in range(2):
            buffer = poisoned(4096)
            completion = client.get([absent], [buffer])
            check_get(completion, [absent], [buffer], [False], untouched=True)
        load_good(client, present, 4096, "missed twice")
    return Seen("missed twice, then loaded", completion.ms)


def _missing_in_many(around: Surroundings) -> Seen:
    keys = [f"{around.prefix}many-{index}" for index in range(96)]
    present = [index % 3 != 0 for index in range(96)]
    with NativeClient(around.main, around.patience, workers=8) as client:
        store_good(client, [key for key, held in zip(keys, present, strict=True) if held], 65536)
        buffers = [poisoned(65536) for _ in keys]
        completion = client.get(keys, buffers)
        check_get(completion, keys, buffers, present, untouched=True)
    return Seen("64 loaded, 32 missed", completion.ms)


def _exists_and_delete(around: Surroundings) -> Seen:
    absent, present = f"{around.prefix}absent", f"{around.prefix}there"
    with NativeClient(around.main, around.patience) as client:
        store_good(client, [present], 4096)
        for name, completion in (
            ("EXISTS", client.exists([absent, present, absent])),
            ("DEL", client.delete([absent, absent])),
        ):
            wanted = [False, True, False] if name == "EXISTS" else [False, False]
            if not completion.ok or completion.error or completion.bools != wanted:
                raise Wrong(f"{name} gave {completion.bools}, error {completion.error!r}")
        load_good(client, present, 4096, "EXISTS and DEL as expected")
    return Seen("absent, not deleted, then loaded", completion.ms)


def _deleted_between(around: Surroundings) -> Seen:
    keys = [f"{around.prefix}between-{index}" for index in range(3)]
    with NativeClient(around.main, around.patience) as client, control(around.main) as server:
        store_good(client, keys, 1_572_864)
        found = client.exists(keys).bools
        if found != [True] * 3:
            raise Wrong(f"EXISTS of three present keys gave {found}")
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
            raise Wrong("EXISTS does not find a key that was just stored")
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
            raise Wrong(f"then EXISTS of an older key gave {found.bools} ({found.error})")
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
