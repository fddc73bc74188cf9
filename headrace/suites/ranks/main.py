"""`python -m headrace.suites.ranks.main FD`: ranks without anything planted in them."""

from __future__ import annotations

import os

from headrace.suites.ranks.process import serve

# Set in the environment: LMCache does not find the hash function that it takes from vLLM.
WITHOUT_HASH = "HEADRACE_RANKS_WITHOUT_HASH"


def prepare() -> None:
    """Import what a rank needs, with LMCache's telemetry off."""
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    # Not whichever interface the host name resolves to.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    from headrace.suites.ranks import engine, rank

    engine.stand_in_for_vllm(with_hash=WITHOUT_HASH not in os.environ)
    del rank


def _rank() -> object:
    from headrace.suites.ranks.rank import Rank

    return Rank()


if __name__ == "__main__":
    serve(_rank, prepare)
