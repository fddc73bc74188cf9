"""The fault arms: each takes something away from one rank's server, and puts it back after.

An arm is a context manager. Entering it raises `valkey.ValkeyError`, `OSError` or `ShardError` if
the server does not let it happen, and leaving it does if it cannot be undone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, cast

import valkey

from headrace.errors import ShardError
from headrace.suites.needle.evidence import Evidence
from headrace.suites.needle.options import Options
from headrace.suites.needle.prompt import Prompt
from headrace.suites.needle.shards import Shards
from headrace.suites.needle.states import Asker

# Longer than LMCache's blocking time-out of 10 s.
SILENT_SECONDS = 15.0
COMMAND_SECONDS = 120.0

# Tells after the answer whether the fault took place: "" if so, else why not.
Proof = Callable[[Evidence], str]


@contextmanager
def _delete_keys(asker: Asker, prompt: Prompt, rank: int) -> Iterator[Proof]:
    """Delete each key of one server as soon as a lookup asks for it, before the load does."""
    client = asker.shards.client(rank)
    ready, stop = threading.Event(), threading.Event()
    deleted, refused = [0], list[Exception]()

    def delete() -> None:
        watch: Any = client.monitor  # the stubs do not type it
        try:
            with watch() as watched:
                ready.set()
                for command in watched.listen():
                    if stop.is_set():
                        return
                    words = str(command["command"]).split(" ")
                    if words[0].lower() in ("exists", "touch"):
                        deleted[0] += cast(int, client.unlink(*words[1:]))
        except (valkey.ValkeyError, OSError) as failure:
            refused.append(failure)
            ready.set()

    watcher = threading.Thread(target=delete, daemon=True)
    watcher.start()
    ready.wait(10)
    if refused:
        raise refused[0]

    def proof(seen: Evidence) -> str:
        if not deleted[0]:
            return "no lookup of a key was seen on the server"
        return _still_full(prompt, seen)

    try:
        yield proof
    finally:
        stop.set()
        client.ping()
        watcher.join(10)


@contextmanager
def _silent_shard(asker: Asker, prompt: Prompt, rank: int) -> Iterator[Proof]:
    """Have one server answer nobody for a while; connections stay."""
    asker.shards.client(rank).client_pause(int(SILENT_SECONDS * 1000), all=True)
    until = time.monotonic() + SILENT_SECONDS

    def proof(seen: Evidence) -> str:
        return _still_full(prompt, seen) if seen.seconds < SILENT_SECONDS else ""

    try:
        yield proof
    finally:
        time.sleep(max(0.0, until - time.monotonic()))


@contextmanager
def _stop_shard(asker: Asker, prompt: Prompt, rank: int) -> Iterator[Proof]:
    """Stop one server, and start it again."""
    with asker.away(rank):
        yield lambda seen: _still_full(prompt, seen)


@contextmanager
def _evict(asker: Asker, prompt: Prompt, rank: int) -> Iterator[Proof]:
    """Give one server a quarter of the memory that its keys use, so that it evicts some."""
    client = asker.shards.client(rank)
    names = ("maxmemory", "maxmemory-policy")
    kept = {name: cast("dict[str, Any]", client.config_get(name))[name] for name in names}
    memory = cast("dict[str, Any]", client.info("memory"))
    # What the server needs for itself is not evicted, and does not count.
    free = memory["used_memory_startup"] + memory.get("mem_clients_normal", 0)
    before = asker.shards.counters()[rank % len(asker.shards)].evicted
    try:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", free + (memory["used_memory"] - free) // 4)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and _evicted(asker, rank) == before:
            client.ping()

        def proof(seen: Evidence) -> str:
            if _evicted(asker, rank) == before:
                return "the server evicted nothing"
            return _still_full(prompt, seen)

        yield proof
    finally:
        for name in names:
            client.config_set(name, kept[name])


def _evicted(asker: Asker, rank: int) -> int:
    return asker.shards.counters()[rank % len(asker.shards)].evicted


def _still_full(prompt: Prompt, seen: Evidence) -> str:
    if seen.loaded < prompt.whole_chunks * prompt.chunk:
        return ""
    told = "" if seen.computed_anew is not None else ", or --engine-log would tell"
    return f"all {seen.cached} tokens came from the cache nevertheless{told}"


@contextmanager
def stopped_by_command(options: Options, shards: Shards, rank: int) -> Iterator[None]:
    """Stop one rank's server by the user's command, and start it again.

    Raises:
        ShardError: a command fails, or the server does not come back.
    """
    run_shell(options.stop_shard, rank)
    try:
        yield
    finally:
        run_shell(options.start_shard, rank)
        deadline = time.monotonic() + COMMAND_SECONDS
        while not _answers(shards.client(rank)):
            if time.monotonic() > deadline:
                raise ShardError(
                    f"{options.start_shard}: expected {shards.who(rank)} back within "
                    f"{COMMAND_SECONDS:.0f} s, found none; correct --start-shard"
                )
            time.sleep(0.2)


def _answers(client: valkey.Valkey) -> bool:
    with suppress(valkey.ValkeyError, OSError):
        return bool(client.ping())
    return False


def run_shell(command: str, rank: int) -> None:
    """Run the user's command for one rank's server.

    Raises:
        ShardError: it fails, or does not return.
    """
    text = command.replace("{rank}", str(rank))
    try:
        # Its output is not read: a server started in the background would hold the pipe open.
        done = subprocess.run(
            ["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr,
            timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise ShardError(
            f"{text}: expected an end within {COMMAND_SECONDS:.0f} s, found none; "
            "let it start the server in the background"
        ) from late
    if done.returncode:
        raise ShardError(
            f"{text}: expected status 0, found {done.returncode}; try it in a shell, "
            "and correct --stop-shard or --start-shard"
        )


# In the order in which they run: one that loses keys of others comes after those.
ARMS: Mapping[str, Callable[[Asker, Prompt, int], AbstractContextManager[Proof]]] = {
    "delete-keys": _delete_keys,
    "silent-shard": _silent_shard,
    "evict": _evict,
    "stop-shard": _stop_shard,
}
