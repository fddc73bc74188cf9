"""Ranks of a replica on the LMCache under test, and what tests ask of them again and again.

The pool itself is `headrace.suites.ranks`: a bench needs it too.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.suites.ranks.pool import RankPool
from headrace.suites.ranks.servers import Shards
from headrace.suites.ranks.settings import Settings
from headrace.suites.ranks.template import Template

MODULE = "tests.patches.lmcache.rank_process"
# Far above what anything takes on a busy machine.
PATIENCE = 20.0
# The release loses completions, in lookups as well: what hangs there hangs for ever.
STOCK_PATIENCE = 4.0

# The ranks that most tests run on, and their prompt: more whole chunks than ranks, a rank that owns
# one less than the others, and part of a chunk behind.
WORLD = 3
CHUNKS = 11
LABELS = list(range(1, CHUNKS + 1))
TAIL = 5


def site() -> Path:
    """Return the folder with the lmcache package that the tests run on."""
    found = importlib.util.find_spec("lmcache")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def is_sharded() -> bool:
    """Whether that LMCache has the sharded store."""
    # Not by find_spec: it would import LMCache, which takes long and is not needed here.
    return (site() / "lmcache/v1/pcp_shard").is_dir()


def template(log: Path, env: Mapping[str, str] | None = None) -> Template:
    """Return a process that imports that LMCache; its ranks take faults."""
    return Template(log, site(), MODULE, env)


@contextlib.contextmanager
def replica(
    source: Template | Sequence[Template],
    folder: Path,
    world: int,
    *options: str,
    processes: int = 0,
) -> Iterator[tuple[RankPool, Shards]]:
    """Start `world` ranks and a Valkey for each.

    With `processes`, that many ranks in several replicas, which share the Valkeys.
    """
    patience = PATIENCE if is_sharded() else STOCK_PATIENCE
    with (
        Shards(world, *options) as shards,
        RankPool(source, folder, processes or world, world, patience) as pool,
    ):
        yield pool, shards


def assert_loaded(
    answers: Sequence[Mapping[str, Any]], chunks: int, settings: Settings, of: int | None = None
) -> None:
    """Check that every rank loaded `chunks` chunks, the right bytes, and touched nothing else."""
    wanted = chunks * settings.chunk_size
    total = (chunks if of is None else of) * settings.chunk_size
    for rank, answer in enumerate(answers):
        assert answer["tokens"] == wanted, (
            f"rank {rank} loaded {answer['tokens']} of {total} tokens, expected {wanted}"
        )
        assert answer["prefix"], f"rank {rank} reports tokens that are no prefix"
        assert not answer["wrong"], f"rank {rank} has wrong bytes in chunks {answer['wrong']}"
        assert not answer["strayed"], (
            f"rank {rank} wrote to {answer['strayed']} slots of somebody else"
        )


def found(pool: RankPool, labels: Sequence[int], **request: Any) -> int:
    """Look a prompt up on every rank, and return what the scheduler makes of it: tokens."""
    answers = pool.each("lookup", labels=list(labels), **request)
    return min(int(answer["tokens"]) for answer in answers if answer["tokens"] is not None)
