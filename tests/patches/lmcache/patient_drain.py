"""Keeps the completions that the pinned release loses, so that each test meets its own fault alone.

There, a lookup whose completion is drained before its future is registered waits for ever: a busy
machine loses one in a hundred. test_lost_completion.py is about that; in any other test it would be
a failure for the wrong reason.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from lmcache.v1.storage_backend.native_clients.connector_client_base import ConnectorClientBase

from tests.patches.lmcache.deadline import wait_until

SECONDS = 10.0


class PatientDrain:
    """A native client whose completions are handed over once their futures are registered.

    Only a submit on another thread than the drain's can be between the two, and that one goes on.
    """

    def __init__(self, native: Any, client: ConnectorClientBase[Any]) -> None:
        self._native = native
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        items: list[tuple[int, bool, str, list[bool] | None]] = self._native.drain_completions()
        for future_id, *_ in items:
            wait_until(partial(self._known, int(future_id)), SECONDS, "no future came")
        return items

    def _known(self, future_id: int) -> bool:
        return future_id in self._client._pending or self._client._closed


def keep_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every new client of the pinned release drain patiently; the patched one needs no help."""
    if hasattr(ConnectorClientBase, "_submit"):
        return
    construct = ConnectorClientBase.__init__

    def patient(self: ConnectorClientBase[Any], native: Any, *rest: Any, **named: Any) -> None:
        construct(self, native, *rest, **named)
        self._client = PatientDrain(native, self)

    monkeypatch.setattr(ConnectorClientBase, "__init__", patient)
