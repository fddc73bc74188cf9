"""`python -m tests.patches.lmcache.rank_process FD`: ranks that take faults."""

from __future__ import annotations

from headrace.suites.ranks.main import prepare
from headrace.suites.ranks.process import serve


def _prepare() -> None:
    prepare()
    from tests.patches.lmcache import rank_faults

    del rank_faults


def _rank() -> object:
    from tests.patches.lmcache.rank_faults import FaultyRank

    return FaultyRank()


if __name__ == "__main__":
    serve(_rank, _prepare)
