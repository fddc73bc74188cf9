"""Cases of the Python connector: what an engine gets back, how fast, and what memory stays held."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from headrace.suites.missing_key.backend import BLOCKING_SECONDS, Backend
from headrace.suites.missing_key.case import Case, Endpoint, Seen, Surroundings
from headrace.suites.missing_key.case import WrongError as Wrong
from headrace.suites.missing_key.control import control
from headrace.suites.missing_key.deadline import within

BIG = 12_392_448
# A miss is one round trip; anything near the engine's time-out is the stall that it should end.
PROMPT_SECONDS = 1.0
# More than the connector's queue workers and native threads together.
REPEATS = 8


def connector_cases() -> Iterator[Case]:
    """Yield the cases of this file."""
    for size in (32, 4096, BIG):
        yield Case(
            f"connector/one of three missing, {size} bytes",
            f"loaded, none, loaded, within {PROMPT_SECONDS:.0f} s",
            partial(_partial_batch, size=size),
        )
        yield Case(
            f"connector/single missing, {size} bytes",
            f"none within {PROMPT_SECONDS:.0f} s, then the next get loads",
            partial(_single, size=size),
        )
    yield Case(
        "connector/non-blocking, one of three missing",
        "the loaded prefix, one chunk, and no memory held beyond it",
        _non_blocking,
    )
    yield Case(
        "connector/non-blocking, the first missing",
        "nothing, and no memory held",
        partial(_non_blocking, missing=0),
    )
    yield Case(
        f"connector/{REPEATS} misses in a row",
        "each none at once, no memory held, then the next get loads",
        _repeated,
    )
    yield Case(
        "connector/deleted between contains and get",
        "three found, then loaded, none, loaded",
        _deleted_between,
    )
    yield Case(
        "connector/value of another size",
        "none, then not found until it is stored again, then loaded",
        _other_size,
    )
    yield Case(
        "connector/no memory for the receive buffer",
        f"none within {PROMPT_SECONDS:.0f} s and a working lookup, then loaded once memory is free",
        _no_memory,
    )
    yield Case(
        "connector/wrong password",
        "none and not found, no hang",
        _wrong_password,
        needs="locked",
    )


def _backend(around: Surroundings, size: int, case: str, **options: Any) -> Backend:
    return Backend(around.main, f"{around.prefix}{case}-", size, **options)


def _timed_get(backend: Backend, chunks: Sequence[int], wanted: str, patience: float) -> float:
    """Get a batch and return its milliseconds.

    Raises:
        Wrong: other chunks came back than `wanted`, or they came late.
    """
    began = time.monotonic()
    memories = within(
        BLOCKING_SECONDS + patience,
        lambda: backend.remote.batched_get_blocking(backend.keys(chunks)),
    )
    seconds = time.monotonic() - began
    seen = backend.describe(chunks, memories)
    backend.release(memories)
    if seen != wanted:
        raise Wrong(f"{seen} after {seconds:.2f} s")
    if seconds > PROMPT_SECONDS:
        raise Wrong(f"{seen}, but only after {seconds:.2f} s")
    return seconds * 1000


def _partial_batch(around: Surroundings, size: int) -> Seen:
    with _backend(around, size, "partial") as backend:
        for chunk in (0, 2):
            backend.put(chunk)
        backend.poison_pool()
        ms = _timed_get(backend, (0, 1, 2), "loaded, none, loaded", around.patience)
        _timed_get(backend, (2, 0), "loaded, loaded", around.patience)
    return Seen("loaded, none, loaded", ms)


def _single(around: Surroundings, size: int) -> Seen:
    with _backend(around, size, "single") as backend:
        backend.put(0)
        backend.poison_pool()
        began = time.monotonic()
        memory = within(
            BLOCKING_SECONDS + around.patience,
            lambda: backend.remote.get_blocking(backend.key(7)),
        )
        seconds = time.monotonic() - began
        if memory is not None:
            what = backend.describe((7,), (memory,))
            raise Wrong(f"a missing key came back as a chunk: {what}")
        if seconds > PROMPT_SECONDS:
            raise Wrong(f"none, but only after {seconds:.2f} s")
        _timed_get(backend, (0,), "loaded", around.patience)
    return Seen("none, then loaded", seconds * 1000)


def _non_blocking(around: Surroundings, missing: int = 1) -> Seen:
    with _backend(around, 4096, f"prefix{missing}") as backend:
        for chunk in {0, 1, 2} - {missing}:
            backend.put(chunk)
        backend.poison_pool()
        before = backend.allocated()
        began = time.monotonic()
        memories = backend.on_loop(
            backend.remote.batched_get_non_blocking("lookup", backend.keys((0, 1, 2))),
            BLOCKING_SECONDS + around.patience,
        )
        ms = (time.monotonic() - began) * 1000
        seen = backend.describe((0, 1, 2), memories)
        wanted = ", ".join(["loaded"] * missing)
        if seen != wanted:
            raise Wrong(f"[{seen}] after {ms:.0f} ms")
        backend.release(memories)
        _expect_released(backend, before)
    return Seen(f"[{seen}], all memory given back", ms)


def _repeated(around: Surroundings) -> Seen:
    with _backend(around, 4096, "repeat") as backend:
        backend.put(0)
        before = backend.allocated()
        total = sum(
            _timed_get(backend, (7, 8), "none, none", around.patience) for _ in range(REPEATS)
        )
        _expect_released(backend, before)
        _timed_get(backend, (0,), "loaded", around.patience)
    return Seen(f"{REPEATS} times none, then loaded", total / REPEATS)


def _deleted_between(around: Surroundings) -> Seen:
    with _backend(around, BIG, "between") as backend, control(around.main) as server:
        for chunk in range(3):
            backend.put(chunk)
        found = within(
            around.patience, lambda: backend.remote.batched_contains(backend.keys(range(3)))
        )
        if found != 3:
            raise Wrong(f"{found} of three present chunks found")
        server.delete(backend.name(1))
        backend.poison_pool()
        ms = _timed_get(backend, (0, 1, 2), "loaded, none, loaded", around.patience)
    return Seen("three found, then loaded, none, loaded", ms)


def _other_size(around: Surroundings) -> Seen:
    with _backend(around, 4096, "size") as backend, control(around.main) as server:
        backend.put(0)
        server.set(backend.name(1), b"another layout's chunk")
        ms = _timed_get(backend, (0, 1), "loaded, none", around.patience)
        if within(around.patience, lambda: backend.remote.contains(backend.key(1))):
            raise Wrong("none, yet still found: every later lookup promises what cannot be loaded")
        backend.put(1)
        if not within(around.patience, lambda: backend.remote.contains(backend.key(1))):
            raise Wrong("stored again, yet not found")
        _timed_get(backend, (0, 1), "loaded, loaded", around.patience)
    return Seen("none, not found, stored again, loaded", ms)


def _no_memory(around: Surroundings) -> Seen:
    with _backend(around, BIG, "full", pool_chunks=4) as backend:
        backend.put(0)
        held = []
        while (memory := backend.allocate()) is not None:
            held.append(memory)
        ms = _timed_get(backend, (0,), "none", around.patience)
        found = within(around.patience, lambda: backend.remote.batched_contains(backend.keys((0,))))
        if found != 1:
            raise Wrong(f"with the pool full the lookup finds {found} of 1")
        backend.release(held)
        _timed_get(backend, (0,), "loaded", around.patience)
    return Seen("none, then loaded", ms)


def _wrong_password(around: Surroundings) -> Seen:
    locked = around.private["locked"]
    stranger = Endpoint(locked.host, locked.port, password=locked.password + "-not")
    with Backend(stranger, f"{around.prefix}locked-", 4096) as backend:
        ms = _timed_get(backend, (0,), "none", around.patience)
        if within(around.patience, lambda: backend.remote.batched_contains(backend.keys((0,)))):
            raise Wrong("found on a server that lets nobody in")
    return Seen("none and not found", ms)


def _expect_released(backend: Backend, before: int) -> None:
    held = backend.allocated() - before
    if held:
        raise Wrong(f"{held} bytes of the pool stay held")
