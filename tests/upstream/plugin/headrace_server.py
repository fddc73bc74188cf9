"""Pytest plugin: gives the tests of one process a private Valkey, by REDIS_HOST and REDIS_PORT.

Loaded with `-p headrace_server`, only for files that tests/upstream/touched.toml lists under
`server`: they look for a server while they are imported, so a fixture would come too late.

Environment: HEADRACE_ROOT is the checkout that `headrace` is imported from.
"""

from __future__ import annotations

import os
import sys

import pytest

# Only for this import: in this process the package `tests` must stay upstream's.
sys.path.insert(0, os.environ["HEADRACE_ROOT"])
try:
    from headrace.suites.valkey_server import ValkeyServer
finally:
    sys.path.remove(os.environ["HEADRACE_ROOT"])

_server = ValkeyServer()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    _server.start()
    os.environ["REDIS_HOST"] = _server.host
    os.environ["REDIS_PORT"] = str(_server.port)


def pytest_unconfigure() -> None:
    _server.stop()
