"""`python -m headrace.suites.ranks.main FD`: ranks without anything planted in them."""

from __future__ import annotations

import os

from headrace.suites.ranks.process import serve

# Set in the environment: no stand-in for the hash function that LMCache takes from vLLM.
WITHOUT_VLLM = "HEADRACE_RANKS_WITHOUT_VLLM"


def prepare() -> None:
    """Import what a rank needs, with LMCache's telemetry off."""
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
    # Not whichever interface the host name resolves to.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    from headrace.suites.ranks import engine, rank

    if WITHOUT_VLLM not in os.environ:
        engine.provide_stable_hash()
    del rank


def _rank() -> object:
    from headrace.suites.ranks.rank import Rank

    return Rank()


if __name__ == "__main__":
    serve(_rank, prepare)
