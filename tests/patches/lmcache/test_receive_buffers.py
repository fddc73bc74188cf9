"""Receive buffers: taken without waiting, given back when native code has let go, never lost."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lmcache.v1.storage_backend.native_clients import connector_client_base, resp_client

from tests.patches.lmcache.chunks import chunk
from tests.patches.lmcache.deadline import started, wait_until, within
from tests.patches.lmcache.engine import Engine, content, engine, engine_on, fill, key
from tests.patches.lmcache.fake_native import Call, Completion, FakeNative, everything_succeeds
from tests.patches.lmcache.loops import LoopThread

# Why each test fails on the pinned release; the runner matches these with its messages.
STOCK_REASONS = {
    "test_an_exhausted_pool_is_a_miss": r"a lookup beside a load without buffers did not return",
    "test_a_short_pool_loads_what_fits": r"the load did not return",
    "test_a_late_completion_gives_the_buffers_back": r"buffers did not come back",
    "test_what_is_returned_is_what_was_loaded": r"as loaded",
    "test_waiting_prefetches_share_half_of_the_pool": r"prefetched beside",
    "test_an_error_is_logged_without_the_password": r"was not logged",
    "test_a_password_does_not_get_into_an_exception": r"the exception tells the password",
    "test_the_socket_timeout_reaches_native_code": r"was not passed on",
}

SECONDS = 5.0
POOL_CHUNKS = 16


def loaded_chunks(call: Call, loaded: list[bool]) -> None:
    """Write into the buffers of `call` what its keys hold, as native code does for hits."""
    for name, buffer, is_loaded in zip(call.keys, call.buffers, loaded, strict=False):
        if is_loaded:
            fill(buffer, chunk(name, buffer.nbytes))


@pytest.fixture
def native() -> FakeNative:
    return FakeNative(lambda call: everything_succeeds(call) if call.operation != "get" else None)


@pytest.fixture
def rank(native: FakeNative, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine whose lookups and stores succeed at once, and whose loads a test completes."""
    with engine_on(native, monkeypatch, pool_chunks=POOL_CHUNKS) as built:
        yield built


def load_submitted(native: FakeNative, count: int = 1) -> Call:
    """Wait until `count` loads have reached native code and return the last of them."""

    def loads() -> list[Call]:
        return [call for call in native.calls if call.operation == "get"]

    wait_until(lambda: len(loads()) == count, SECONDS, "the load did not reach native code")
    return loads()[-1]


def test_an_exhausted_pool_is_a_miss(rank: Engine, native: FakeNative) -> None:
    taken = [rank.take() for _ in range(POOL_CHUNKS)]
    keys = [key(index) for index in range(3)]
    [load] = started([lambda: rank.backend.batched_get_blocking(keys)])
    found = within(
        SECONDS, "a lookup beside a load without buffers", lambda: rank.backend.contains(keys[0])
    )
    assert found
    assert load.result_within(SECONDS, "the load") == [None] * 3
    prefetched = rank.storage.run(SECONDS, "the prefetch", lambda: rank.prefetch(keys))
    assert prefetched == []
    assert [call.operation for call in native.calls] == ["exists"]
    taken.pop().ref_count_down()
    [load] = started([lambda: rank.backend.get_blocking(keys[0])])
    native.complete(load_submitted(native), [True])
    assert load.result_within(SECONDS, "a load after a buffer got free") is not None


def test_a_short_pool_loads_what_fits(rank: Engine, native: FakeNative) -> None:
    taken = [rank.take() for _ in range(POOL_CHUNKS - 2)]
    keys = [key(index) for index in range(4)]
    coroutine = rank.connector.batched_get
    [load] = started([lambda: rank.storage.run(SECONDS, "the load", lambda: coroutine(keys))])
    with contextlib.suppress(AssertionError):  # on stock; the load's own message says more
        call = load_submitted(native)
        assert call.keys == [each.to_string() for each in keys[:2]]
        loaded_chunks(call, [True] * 2)
        native.complete(call, [True] * 2)
    results = [content(each) for each in load.result_within(2 * SECONDS, "the load")]
    size = rank.chunk_bytes
    assert results == [chunk(each.to_string(), size) for each in keys[:2]] + [None, None]
    assert rank.allocated() == (len(taken) + 2) * rank.chunk_pages


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("prefetch", "loaded"), ("batch", "loaded"), ("batch", "missed"), ("single", "failed")],
)
def test_a_late_completion_gives_the_buffers_back(
    rank: Engine, native: FakeNative, kind: str, outcome: str
) -> None:
    """The back end gives up on a load; native code goes on writing until it has completed."""
    keys = [key(index) for index in range(3)]
    if kind == "prefetch":
        late: Any = rank.storage.run(SECONDS, "the prefetch", lambda: rank.prefetch(keys))
        assert late == []
    elif kind == "batch":
        late = within(SECONDS, "the load", lambda: rank.backend.batched_get_blocking(keys))
        assert late == [None] * 3
    else:
        late = within(SECONDS, "the load", lambda: rank.backend.get_blocking(keys[0]))
        assert late is None
    call = load_submitted(native)
    assert rank.allocated() == len(call.keys) * rank.chunk_pages, "buffers went back too early"
    if outcome == "failed":
        native.complete(call, ok=False, error="the worker is gone")
    else:
        native.complete(call, [outcome == "loaded"] * len(call.keys))
    wait_until(lambda: rank.allocated() == 0, SECONDS, "buffers did not come back")
    # Whoever ran the abandoned load is there for the next four.
    for number in range(2, 6):
        [load] = started([lambda: rank.backend.get_blocking(keys[0])])
        native.complete(load_submitted(native, number), [False])
        assert load.result_within(SECONDS, "the next load") is None
    assert rank.allocated() == 0


@pytest.mark.patched_only(reason="on stock the garbage collector finds them, sooner or later")
def test_an_error_gives_the_buffers_back(rank: Engine, native: FakeNative) -> None:
    keys = [key(index) for index in range(3)]
    [load] = started([lambda: rank.backend.batched_get_blocking(keys)])
    native.complete(load_submitted(native), ok=False, error="the worker is gone")
    assert load.result_within(SECONDS, "the load") == [None] * 3
    assert rank.allocated() == 0


@pytest.mark.patched_only(reason="on stock the garbage collector finds them, sooner or later")
def test_close_gives_the_buffers_back(rank: Engine, native: FakeNative) -> None:
    keys = [key(index) for index in range(3)]
    held_at_close: list[int] = []
    native._on_close = lambda: held_at_close.append(rank.allocated())
    [load] = started([lambda: rank.backend.batched_get_blocking(keys)])
    load_submitted(native)
    within(SECONDS, "close()", rank.connector.client.close)
    assert load.result_within(SECONDS, "a load at close()") == [None] * 3
    assert held_at_close == [3 * rank.chunk_pages]
    wait_until(lambda: rank.allocated() == 0, SECONDS, "buffers did not come back")


def test_what_is_returned_is_what_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every combination of hits that native code may report, and for reports that are void."""
    report: list[bool] | None = None
    error = ""

    def answer(call: Call) -> Completion:
        # A void report tells of another number of keys, so what was filled is anybody's guess.
        loaded_chunks(call, [True] * len(call.keys) if report is None else report)
        return (call.future_id, True, error, report)

    # No shrinking: examples are small, and on stock each may take a hung load's deadline.
    @settings(max_examples=60, deadline=None, database=None, phases=[Phase.generate])
    @given(
        st.integers(1, 6).flatmap(
            lambda count: st.tuples(
                st.just(count),
                st.none() | st.lists(st.booleans(), min_size=count, max_size=count)
                | st.lists(st.booleans(), max_size=8),
            )
        ),
        st.sampled_from(["", "key k: connection closed"]),
        st.booleans(),
    )  # fmt: skip
    def check(asked: tuple[int, list[bool] | None], text: str, prefetch: bool) -> None:
        nonlocal report, error
        count, report = asked
        error = text
        rank.poison()
        keys = [key(next(fresh)) for _ in range(count)]
        if prefetch:
            loaded = rank.storage.run(SECONDS, "the prefetch", lambda: rank.prefetch(keys))
        else:
            loaded = within(SECONDS, "the load", lambda: rank.backend.batched_get_blocking(keys))
        if report is None:
            hits = [not text] * count
        else:
            hits = report if len(report) == count else [False] * count
        if prefetch:
            hits = list(itertools.takewhile(bool, hits))
        wanted = [
            chunk(each.to_string(), rank.chunk_bytes) if hit else None
            for each, hit in zip(keys, hits, strict=False)
        ]
        found, held = [content(each) for each in loaded], rank.allocated()
        for each in loaded:
            if each is not None:
                each.ref_count_down()
        assert found == wanted, f"{report} came back as loaded"
        assert (held, rank.allocated()) == (sum(hits) * rank.chunk_pages, 0)

    fresh = itertools.count()
    with engine_on(FakeNative(answer), monkeypatch, chunk_bytes=64, pool_chunks=8) as rank:
        check()


def test_waiting_prefetches_share_half_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_on(FakeNative(everything_succeeds), monkeypatch, pool_chunks=POOL_CHUNKS) as rank:

        def prefetch(count: int) -> list[Any]:
            keys = [key(index) for index in range(count)]
            loaded: list[Any] = rank.storage.run(
                SECONDS, "the prefetch", lambda: rank.prefetch(keys)
            )
            return loaded

        first = prefetch(6)
        second = prefetch(6)
        assert (len(first), len(second)) == (6, 2), "prefetched beside what waits to be loaded"
        assert prefetch(1) == []
        for each in first:
            each.ref_count_down()
        third = prefetch(9)
        assert len(third) == 6
        for each in second + third:
            each.ref_count_down()
        alone = prefetch(POOL_CHUNKS)
        assert len(alone) == POOL_CHUNKS, "a request that is alone may have the whole pool"


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what the native clients' Python side logs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(connector_client_base.__name__)
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def resp_client_on(
    native: FakeNative, thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> resp_client.RESPClient:
    monkeypatch.setattr(resp_client, "LMCacheRedisClient", lambda *_, **options: native)
    return resp_client.RESPClient("nowhere", 1, 1, thread.loop, "name", "open-sesame")


def test_an_error_is_logged_without_the_password(
    storage_loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = "key a: -ERR unknown command 'AUTH', with args beginning with: 'name' 'open-sesame'"
    native = FakeNative(lambda call: (call.future_id, True, error, [False]))
    client = resp_client_on(native, storage_loop, monkeypatch)

    async def a_thousand_gets() -> None:
        for _ in range(1000):
            await client.batch_get(["a"], [memoryview(bytearray(4))])

    with logged() as lines:
        storage_loop.run(SECONDS, "GET", a_thousand_gets)
    assert len(lines) == 1, f"{len(lines)} lines; the error was not logged once"
    assert "key a: -ERR unknown command" in lines[0]
    assert "open-sesame" not in lines[0]


def test_a_password_does_not_get_into_an_exception(
    storage_loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = FakeNative(lambda call: (call.future_id, False, "AUTH name open-sesame", None))
    client = resp_client_on(native, storage_loop, monkeypatch)
    with pytest.raises(RuntimeError, match="AUTH name") as raised:
        storage_loop.run(
            SECONDS, "SET", lambda: client.batch_set(["a"], [memoryview(bytearray(4))])
        )
    assert "open-sesame" not in str(raised.value), "the exception tells the password"


def test_the_socket_timeout_reaches_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[dict[str, Any]] = []

    def construct(*_: object, **options: Any) -> FakeNative:
        passed.append(options)
        return FakeNative(everything_succeeds)

    monkeypatch.setattr(resp_client, "LMCacheRedisClient", construct)
    with engine("nowhere:1"), engine("nowhere:1", resp_socket_timeout_ms=250):
        pass
    assert passed == [{}, {"socket_timeout_ms": 250}], "the time-out was not passed on"


@pytest.mark.patched_only(reason="holds on stock; the patch must not swallow it")
def test_a_failed_store_still_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    native = FakeNative(lambda call: (call.future_id, False, "key a: -OOM", [False]))
    with engine_on(native, monkeypatch) as rank:
        put = rank.backend.submit_put_task(key(0), rank.take())
        with pytest.raises(RuntimeError, match="-OOM"):
            within(SECONDS, "the store", put.result)


@pytest.mark.patched_only(reason="holds on stock; upstream's own stand-in is such a client")
def test_a_client_that_says_nothing_has_loaded_all(
    rank: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def batch_get(keys: list[str], buffers: list[memoryview]) -> None:
        if "@7@" in keys[-1]:
            raise RuntimeError("key not found")

    monkeypatch.setattr(rank.connector.client, "batch_get", batch_get)
    keys = [key(index) for index in range(3)]
    loaded = within(SECONDS, "the load", lambda: rank.backend.batched_get_blocking(keys))
    assert None not in loaded
    missing = within(
        SECONDS, "the load", lambda: rank.backend.batched_get_blocking([*keys, key(7)])
    )
    assert missing == [None] * 4
    assert rank.allocated() == 3 * rank.chunk_pages
