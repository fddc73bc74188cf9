"""A rank whose lookups a scheduler elsewhere asks for, over LMCache's own sockets."""

from __future__ import annotations

from typing import Any

from lmcache.v1.lookup_client.factory import LookupClientFactory

from headrace.suites.ranks.rank import Rank


class ServedRank(Rank):
    """Answers lookups through LMCache's own server, if this rank is to run one.

    The scheduler finds it by settings.extra["engine_id"].
    """

    def lookup_server(self) -> Any:
        self.engine.metadata.engine_id = self.settings.extra["engine_id"]
        return LookupClientFactory.create_lookup_server(self.engine, self.engine.metadata)
