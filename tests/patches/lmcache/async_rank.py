"""`python -m tests.patches.lmcache.async_rank FD`: ranks that a scheduler elsewhere asks."""

from __future__ import annotations

from headrace.suites.ranks.main import prepare
from headrace.suites.ranks.process import serve


def _rank() -> object:
    from tests.patches.lmcache.served_rank import ServedRank

    return ServedRank()


if __name__ == "__main__":
    serve(_rank, prepare)
