"""Notice when this process was not run for a while.

The scripted servers live in the process that drives the client, and the client's socket time-outs
are short. On a machine that stands still for half a second, a good client times out: what a case
saw then says nothing of the client.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

BEAT_SECONDS = 0.02


class StallWatch:
    """Measures, while the block runs, the longest time that a thread of this process had to wait.

    Attributes:
        longest_ms: by how many milliseconds the latest beat was late.
    """

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            self._note(now - before)
            before = now
        self._note(time.monotonic() - before)

    def _note(self, seconds: float) -> None:
        self.longest_ms = max(self.longest_ms, (seconds - BEAT_SECONDS) * 1000)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
