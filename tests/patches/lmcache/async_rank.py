"""`python -m tests.patches.lmcache.async_rank FD`: ranks that a scheduler elsewhere asks."""

from __future__ import annotations

from typing import Any

from headrace.suites.ranks.main import prepare
from headrace.suites.ranks.process import serve


def _rank() -> object:
    from lmcache.v1.lookup_client.factory import LookupClientFactory

    from headrace.suites.ranks.engine import build_engine
    from headrace.suites.ranks.rank import Rank
    from headrace.suites.ranks.settings import Settings

    class AsyncRank(Rank):
        """Answers lookups through LMCache's own server, if this rank is to run one."""

        def open(self, settings: dict[str, Any]) -> dict[str, Any]:
            self.settings = Settings(**settings)
            self._engine = engine = build_engine(self.settings, self.rank, self.world)
            engine.metadata.engine_id = self.settings.extra["engine_id"]
            server = LookupClientFactory.create_lookup_server(engine, engine.metadata)
            engine.post_init(async_lookup_server=server)
            return {"server": server is not None}

    return AsyncRank()


if __name__ == "__main__":
    serve(_rank, prepare)
