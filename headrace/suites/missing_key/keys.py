"""Cases against a real Valkey: keys that were never there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from headrace.suites.missing_key.case import Case, Seen, Surroundings
from headrace.suites.missing_key.case import WrongError as Wrong
from headrace.suites.missing_key.native import NativeClient, check_get, load_good, store_good
from headrace.suites.missing_key.values import poisoned

# 99 bytes is the largest value whose header is as long as a null reply; the last is the chunk of
# 256 tokens of the deployment that headrace serves.
SIZES = (99, 100, 4096, 1_572_864, 12_392_448)
BATCH = 5


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
        "missing/lookup and DEL",
        "absent and not deleted, without error text; the next GET loads",
        _exists_and_delete,
    )


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
            ("lookup", client.exists([absent, present, absent])),
            ("DEL", client.delete([absent, absent])),
        ):
            wanted = [False, True, False] if name == "lookup" else [False, False]
            if not completion.ok or completion.error or completion.bools != wanted:
                raise Wrong(f"{name} gave {completion.bools}, error {completion.error!r}")
        load_good(client, present, 4096, "lookup and DEL as expected")
    return Seen("absent, not deleted, then loaded", completion.ms)
