"""Cases about the connection itself: dropped, out of step, refused, gone and back."""

from __future__ import annotations

import time
from collections.abc import Iterator

from headrace.suites.missing_key.case import Case, Endpoint, Seen, Surroundings
from headrace.suites.missing_key.case import WrongError as Wrong
from headrace.suites.missing_key.control import control
from headrace.suites.missing_key.native import NativeClient, check_get, load_good, store_good
from headrace.suites.missing_key.scripted_server import Script, ScriptedServer
from headrace.suites.missing_key.values import poisoned, value_of

SIZE = 4096
# After this long, what the server did to the connection has reached the client's socket.
_SETTLE_SECONDS = 0.2


def connection_cases() -> Iterator[Case]:
    """Yield the cases of this file."""
    yield Case(
        "connection/dropped between commands",
        "the next GET reconnects and loads",
        _dropped,
        needs="plain",
    )
    yield Case(
        "connection/dropped, every command",
        "GET, SET, lookup and DEL each reconnect and work",
        _dropped_before_each,
    )
    yield Case(
        "connection/a reply to nothing while idle",
        "the next GET loads its own bytes",
        _unasked_reply,
    )
    yield Case(
        "connection/nobody listens, then a server starts",
        "GET fails with a text, and loads once the server is there",
        _late_server,
    )
    yield Case(
        "connection/wrong password",
        "GET, SET and lookup fail with the server's WRONGPASS text, none hangs",
        _wrong_password,
        needs="locked",
    )


def _dropped(around: Surroundings) -> Seen:
    server = around.private["plain"]
    key = f"{around.prefix}kept"
    with NativeClient(server, around.patience) as client, control(server) as owner:
        store_good(client, [key], SIZE)
        owner.client_kill_filter(_type="normal", skipme=True)
        time.sleep(_SETTLE_SECONDS)
        completion = load_good(client, key, SIZE, "connection dropped")
    return Seen("reconnected and loaded", completion.ms)


def _dropped_before_each(around: Surroundings) -> Seen:
    store = {key: value_of(key, SIZE) for key in ("one", "two")}
    with ScriptedServer(store) as server, NativeClient(server.endpoint, around.patience) as client:
        load_good(client, "one", SIZE, "connected")
        slowest = 0.0
        for name in ("GET", "SET", "lookup", "DEL"):
            server.drop_connections()
            time.sleep(_SETTLE_SECONDS)
            buffer = poisoned(SIZE)
            if name == "GET":
                completion = client.get(["one"], [buffer])
                check_get(completion, ["one"], [buffer], [True])
            elif name == "SET":
                completion = client.set(["three"], [value_of("three", SIZE)])
            elif name == "lookup":
                completion = client.exists(["one"])
            else:
                completion = client.delete(["two"])
            if not completion.ok or completion.error or completion.bools not in (None, [True]):
                raise Wrong(f"{name} after a drop gave {completion.bools}, {completion.error!r}")
            slowest = max(slowest, completion.ms)
        if set(server.store) != {"one", "three"}:
            raise Wrong(f"the server ended up with {sorted(server.store)}")
    return Seen("four commands, four reconnects", slowest)


def _unasked_reply(around: Surroundings) -> Seen:
    store = {key: value_of(key, SIZE) for key in ("first", "second")}
    honest = b"$%d\r\n%b\r\n" % (SIZE, store["first"])
    foreign = b"$%d\r\n%b\r\n" % (SIZE, b"F" * SIZE)
    script = Script((honest, foreign), pause=_SETTLE_SECONDS / 4)
    with (
        ScriptedServer(store, {("GET", "first"): script}) as server,
        NativeClient(server.endpoint, around.patience) as client,
    ):
        load_good(client, "first", SIZE, "connected")
        time.sleep(_SETTLE_SECONDS)
        completion = load_good(client, "second", SIZE, "an unasked reply came in")
    return Seen("dropped the unasked reply, loaded the right bytes", completion.ms)


def _late_server(around: Surroundings) -> Seen:
    with ScriptedServer() as server:
        vacant = server.endpoint
    buffer = poisoned(SIZE)
    with NativeClient(vacant, around.patience) as client:
        completion = client.get(["key"], [buffer])
        check_get(completion, ["key"], [buffer], [False])
        if not completion.error:
            raise Wrong("GET without a server is a miss without error text")
        with ScriptedServer({"key": value_of("key", SIZE)}, port=vacant.port):
            load_good(client, "key", SIZE, "failed with a text while nobody listened")
    return Seen(f"failed ({completion.error}), then loaded", completion.ms)


def _wrong_password(around: Surroundings) -> Seen:
    locked = around.private["locked"]
    stranger = Endpoint(locked.host, locked.port, password=locked.password + "-not")
    with NativeClient(stranger, around.patience) as client:
        buffer = poisoned(SIZE)
        got = client.get(["key"], [buffer])
        check_get(got, ["key"], [buffer], [False])
        stored = client.set(["key"], [value_of("key", SIZE)])
        if stored.ok:
            raise Wrong("SET is reported stored")
        found = client.exists(["key"])
        if found.bools != [False]:
            raise Wrong(f"the lookup gave {found.bools}")
        for name, completion in (("GET", got), ("SET", stored), ("lookup", found)):
            if "WRONGPASS" not in completion.error:
                raise Wrong(f"{name} does not say why: {completion.error!r}")
            if stranger.password in completion.error:
                raise Wrong(f"{name} prints the password")
    return Seen(f"failed: {got.error}", got.ms)
