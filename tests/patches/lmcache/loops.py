"""An asyncio loop in a thread of its own, as LMCache's storage manager runs one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from tests.patches.lmcache.deadline import wait_until

Result = TypeVar("Result")


class LoopThread:
    """A running loop, and a way to run a coroutine on it under a deadline."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, seconds: float, what: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Await `call()` on the loop and return its result, or raise HungError after `seconds`."""

        async def awaited() -> Result:
            return await call()

        future = asyncio.run_coroutine_threadsafe(awaited(), self.loop)
        wait_until(future.done, seconds, f"{what} did not return")
        return future.result()

    def stop(self) -> None:
        """Stop the loop; a loop that is blocked is left behind with its daemon thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self.loop.close()


@contextlib.contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """Run a loop for the block."""
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.stop()
