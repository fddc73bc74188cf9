"""An independent client, to arrange and to check what a server holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import valkey

from headrace.suites.missing_key.case import Endpoint


@contextmanager
def control(server: Endpoint) -> Iterator[valkey.Valkey]:
    """Yield an independent client, to arrange what the server holds."""
    client = valkey.Valkey(
        host=server.host, port=server.port, socket_timeout=30,
        username=server.username or None, password=server.password or None,
    )  # fmt: skip
    try:
        yield client
    finally:
        client.connection_pool.disconnect()
