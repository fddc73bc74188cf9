"""`python -m tests.patches.lmcache.mixed_process FD`: ranks that say what they hold."""

from __future__ import annotations

from headrace.suites.ranks.main import prepare
from headrace.suites.ranks.process import serve


def _prepare() -> None:
    prepare()
    from tests.patches.lmcache import counted_rank

    del counted_rank


def _rank() -> object:
    from tests.patches.lmcache.counted_rank import CountedRank

    return CountedRank()


if __name__ == "__main__":
    serve(_rank, _prepare)
