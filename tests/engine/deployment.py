"""An engine that is asked, restarted and asked again, and the servers that outlive it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.suites.needle_prompt import NeedlePrompt
from tests.engine.needles import PROMPTS, chunks
from tests.engine.paged_cache import lacking
from tests.engine.real_engine import Answer, RealEngine
from tests.engine.settings import RANKS, cache_settings
from tests.engine.shards import Shards, shards

# What a load may wait for a silent server; the RESP client's own limit is the same by default.
READ_SECONDS = 5
# Where chunks are fetched ahead, the scheduler waits for them too, and gives them up before the
# read does, as with the defaults of 3 s and 5 s. Two cores have stood still for 4.5 s.
LOOKUP_SECONDS = 12
READ_AHEAD_SECONDS = 16
# Between two looks for an answer all of vLLM's processes take a step.
BACKOFF_SECONDS = 0.02
# Room for one longest prompt and a little more, so that a few requests at once do not fit.
BLOCKS = 300


@dataclass(frozen=True)
class Mode:
    """How LMCache keeps the KV that both ranks hold.

    Attributes:
        sharded: each rank keeps what it owns, on its own server; else rank 0 keeps all.
        loads_ahead: chunks are fetched from the lookup on (`enable_async_loading`).
    """

    name: str
    sharded: bool
    loads_ahead: bool

    @property
    def read_seconds(self) -> int:
        """How long a read may wait for a silent server."""
        return READ_AHEAD_SECONDS if self.loads_ahead else READ_SECONDS

    def settings(self, url: str) -> dict[str, object]:
        """Return LMCache's settings for servers at `url`."""
        extra, ahead = {}, {}
        if self.loads_ahead:
            extra = {
                "lookup_backoff_time": BACKOFF_SECONDS,
                "resp_socket_timeout_ms": READ_AHEAD_SECONDS * 1000,
            }
            ahead = {"lookup_timeout_ms": LOOKUP_SECONDS * 1000}
        return cache_settings(
            url if self.sharded else url.replace("{rank}", "0"),
            pre_caching_hash_algorithm="sha256_cbor",
            blocking_timeout_secs=self.read_seconds,
            enable_async_loading=self.loads_ahead,
            extra_config={**extra, **({"pcp_shard_store": True} if self.sharded else {})},
            **ahead,
        )

    def server(self, owner: int) -> int:
        """Return which server keeps the chunks that rank `owner` owns."""
        return owner if self.sharded else 0

    def on_server(self, prompt: NeedlePrompt, server: int) -> list[int]:
        """Return the chunks of a prompt that a server keeps, in order."""
        return [chunk for chunk in range(chunks(prompt)) if self.server(chunk % RANKS) == server]

    def kept(self, prompt: NeedlePrompt) -> list[int]:
        """Return how many chunks of a prompt each server keeps."""
        return [len(self.on_server(prompt, server)) for server in range(RANKS)]


MODES = [
    Mode("plain", sharded=False, loads_ahead=False),
    Mode("sharded", sharded=True, loads_ahead=False),
    Mode("sharded-async", sharded=True, loads_ahead=True),
]


@dataclass
class Life:
    """What an engine answered to each prompt while the servers were watched.

    Attributes:
        gets, sets: calls that each server was sent for the prompt.
        keys: those that each server holds since.
        lacking: blocks of the prompt's chunks that each rank's paged cache lacked afterwards.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    gets: dict[str, list[int]] = field(default_factory=dict)
    sets: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[str, list[set[bytes]]] = field(default_factory=dict)
    lacking: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class Deployment:
    """An engine in its second life, and the records of its first.

    Attributes:
        cold: each prompt asked for the first time; nothing was cached anywhere.
        local: each prompt asked again, of the same engine.
        first_faults: what the first engine's log complains about, its end included.
        engine: started since, with an empty local tier; the servers hold all prompts.
    """

    mode: Mode
    servers: Shards
    cold: Life
    local: Life
    first_faults: list[str]
    engine: RealEngine


@contextlib.contextmanager
def deployment(mode: Mode, model: Path, logs: Path) -> Iterator[Deployment]:
    """Run `mode` from the first question to the last; its logs are kept in `logs`."""
    with shards(RANKS) as servers:
        first = _engine(mode, servers, model, logs / f"{mode.name}-first.log")
        with first:
            cold = _watched(first, servers, mode)
            local = _watched(first, servers, mode, cold)
        with _engine(mode, servers, model, logs / f"{mode.name}-second.log") as second:
            yield Deployment(mode, servers, cold, local, first.faults(), second)


def _engine(mode: Mode, servers: Shards, model: Path, log: Path) -> RealEngine:
    log.unlink(missing_ok=True)
    return RealEngine(model, log, mode.settings(servers.url), num_gpu_blocks_override=BLOCKS)


def _watched(engine: RealEngine, servers: Shards, mode: Mode, cold: Life | None = None) -> Life:
    """Ask every prompt; the first time wait until each one's chunks are on the servers."""
    life = Life()
    held = servers.keys()
    for name, prompt in PROMPTS.items():
        servers.reset_calls()
        (life.answers[name],) = engine.ask(prompt.tokens)
        if cold is None:
            counts = zip(held, mode.kept(prompt), strict=True)
            servers.wait_for_keys([len(keys) + new for keys, new in counts])
        now = servers.keys()
        life.gets[name], life.sets[name] = servers.calls("get"), servers.calls("set")
        life.keys[name] = [set(new) - set(old) for new, old in zip(now, held, strict=True)]
        life.lacking[name] = lacking(engine, servers, (cold or life).keys[name])
        held = now
    return life
