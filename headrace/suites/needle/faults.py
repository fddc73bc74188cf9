"""Fault arms: something is taken away while a prompt loads; the answer must be right all the same.

Each arm has a prompt of its own, stored before the restart. An arm disturbs one rank's server, and
others that use it: run them on servers of your own.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

import valkey

from headrace.errors import ConfigurationError, EndpointError, ShardError
from headrace.suites.needle.cells import Cell
from headrace.suites.needle.evidence import Evidence
from headrace.suites.needle.options import Options
from headrace.suites.needle.prompt import Prompt
from headrace.suites.needle.score import score
from headrace.suites.needle.states import Asker
from headrace.suites.results import Verdict

# Longer than LMCache's blocking time-out of 10 s.
SILENT_SECONDS = 15.0
_COMMAND_SECONDS = 120.0

# Tells after the answer whether the fault took place: "" if so, else why not.
Proof = Callable[[Evidence], str]


def check_faults(options: Options) -> None:
    """Raise ConfigurationError if an arm lacks what it needs."""
    if options.faults and not options.valkey:
        raise ConfigurationError("--fault: expected --valkey with the servers to disturb")
    if "stop-shard" in options.faults and not (options.stop_shard and options.start_shard):
        raise ConfigurationError(
            "--fault stop-shard: expected how to stop a server and start it again, found nothing; "
            "add --stop-shard and --start-shard, with {rank} in them"
        )


def run_arm(asker: Asker, arm: str, prompt: Prompt) -> Cell:
    """Ask `prompt` under one arm, then again without it, and judge both.

    Green: the answer is right, in time, and so is the next one.
    """
    cold = asker.cold(prompt)
    cold_seconds = cold.evidence.seconds if cold and cold.evidence else 0.0
    limit = max(60.0, 3 * cold_seconds + 30.0)
    rank = asker.shards.ranks - 1
    why: list[str] = []
    verdict: Verdict = "green"
    answer, found, seen = "", "missing", None
    for moment in ("", "next request: "):
        try:
            if moment:
                said, evidence = asker.send(prompt, asker.options.tag, limit)
            else:
                with _ARMS[arm](asker, prompt, rank) as proof:
                    said, evidence = asker.send_quietly(prompt, asker.options.tag, limit)
                doubt = proof(evidence)
                if doubt:
                    verdict = "void"
                    why.append(f"{arm} did not take place: {doubt}")
                answer, seen = said.text, evidence
        except (EndpointError, ShardError) as failure:
            why.insert(0, f"{moment}no answer within {limit:.0f} s: {failure}")
            verdict = "red"
            continue
        judged = score(said.text, prompt, asker.dialect, asker.known)
        found = found if moment else judged.found
        wrong = [] if judged.found == "right" else [f"{judged.found} code: {judged.why}"]
        wrong += [f"answer has {sign}" for sign in judged.signs]
        if wrong:
            verdict = "red"
            why = [*(f"{moment}{each}" for each in wrong), *why]
    ranks = (rank,) if verdict == "red" else ()
    cell = Cell(prompt, arm, verdict, tuple(why), ranks, answer, found, seen)
    asker.note(cell)
    return cell


@contextmanager
def _delete_keys(asker: Asker, prompt: Prompt, rank: int) -> Iterator[Proof]:
    """Delete each key of one server as soon as a lookup asks for it, before the load does."""
    client = asker.shards.client(rank)
    stop, deleted = threading.Event(), [0]

    def delete() -> None:
        watch: Any = client.monitor  # the stubs do not type it
        with watch() as watched, suppress(valkey.ValkeyError, OSError):
            ready.set()
            for command in watched.listen():
                if stop.is_set():
                    return
                words = str(command["command"]).split(" ")
                if words[0].lower() in ("exists", "touch"):
                    deleted[0] += cast(int, client.unlink(*words[1:]))

    ready = threading.Event()
    watcher = threading.Thread(target=delete, daemon=True)
    watcher.start()
    ready.wait(10)

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
    """Stop one server by the user's command, and start it again."""
    _shell(asker.options.stop_shard, rank)
    try:
        yield lambda seen: _still_full(prompt, seen)
    finally:
        _shell(asker.options.start_shard, rank)
        deadline = time.monotonic() + _COMMAND_SECONDS
        while time.monotonic() < deadline:
            with suppress(valkey.ValkeyError, OSError):
                if asker.shards.client(rank).ping():
                    break
            time.sleep(0.2)


@contextmanager
def _evict(asker: Asker, prompt: Prompt, rank: int) -> Iterator[Proof]:
    """Give one server half the memory that it uses, so that it evicts, and put it back after."""
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
    if seen.cached < prompt.whole_chunks * prompt.chunk:
        return ""
    return f"all {seen.cached} tokens came from the cache nevertheless"


def _shell(command: str, rank: int) -> None:
    text = command.replace("{rank}", str(rank))
    done = subprocess.run(
        ["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, capture_output=True,
        timeout=_COMMAND_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ShardError(f"{text}: expected status 0, found {done.returncode}")


_ARMS: Mapping[str, Callable[[Asker, Prompt, int], Any]] = {
    "delete-keys": _delete_keys,
    "silent-shard": _silent_shard,
    "stop-shard": _stop_shard,
    "evict": _evict,
}
