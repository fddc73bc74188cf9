"""Three private servers, and the suite run against the stand-in engine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import valkey

from headrace.suites.needle.options import Options
from headrace.suites.needle.run import Outcome, run_suite
from headrace.suites.valkey_server import ValkeyServer
from tests.suites.needle.fake_engine import Behaviour, FakeEngine

RANKS = 3
CHUNK = 128


@dataclass
class Stand:
    """What a test drives: servers, folder, and the engine of the last run."""

    servers: list[ValkeyServer]
    folder: Path
    engine: FakeEngine | None = None

    @property
    def log(self) -> Path:
        path = self.folder / "engine.log"
        path.touch()
        return path

    def options(self, url: str, **changes: Any) -> Options:
        """Return short options with everything named that a green run needs."""
        code = f"import urllib.request as r; r.urlopen(r.Request('{url}/restart', data=b''))"
        defaults: dict[str, Any] = {
            "valkey": tuple(f"127.0.0.1:{server.port}" for server in self.servers),
            "ranks": RANKS, "chunk": CHUNK, "lengths": (1000,), "depths": (20, 80), "seams": False,
            "seed": 5, "restart": shlex.join([sys.executable, "-c", code]),
            "logs": (self.log,), "out": self.folder / "out", "settle": 2.0, "distractors": 3,
        }  # fmt: skip
        return Options(url, **{**defaults, **changes})

    def run(
        self,
        behaviour: Behaviour | None = None,
        before: Callable[[FakeEngine], None] = lambda engine: None,
        **changes: Any,
    ) -> Outcome:
        """Run the suite against a new engine; the servers are emptied first."""
        does = behaviour or Behaviour()
        clients = [
            valkey.Valkey(host=server.host, port=server.port, socket_timeout=does.patience)
            for server in self.servers
        ]
        for client in clients:
            client.flushall()
        does.chunk = CHUNK
        with FakeEngine(clients, does) as engine:
            self.engine = engine
            before(engine)
            return run_suite(self.options(engine.url, **changes), lambda result: None)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ValkeyServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ValkeyServer()) for _ in range(RANKS)]


@pytest.fixture
def stand(servers: list[ValkeyServer], tmp_path: Path) -> Stand:
    return Stand(servers, tmp_path)
