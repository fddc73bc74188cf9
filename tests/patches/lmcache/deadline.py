"""Calls that may hang, under a deadline that shows where everything stands."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


class HungError(AssertionError):
    """Something did not end in time; the stacks of all threads are on standard error."""


def within(seconds: float, what: str, call: Callable[[], Result]) -> Result:
    """Run `call` in a thread of its own and return its result, or raise what it raises.

    Raises:
        HungError: it does not end within `seconds`; the thread is left behind.
    """
    return started([call])[0].result_within(seconds, what)


class Started(Future[Result]):
    """The result of a call that runs in a daemon thread."""

    def result_within(self, seconds: float, what: str) -> Result:
        """Return the call's result, or raise what it raised or, after `seconds`, HungError."""
        wait_until(self.done, seconds, f"{what} did not return")
        return self.result()


def started(calls: Sequence[Callable[[], Result]]) -> list[Started[Result]]:
    """Run each call in a daemon thread, so that a hung one cannot keep the process alive."""
    futures: list[Started[Result]] = []
    for call in calls:
        future: Started[Result] = Started()
        threading.Thread(target=_run, args=(future, call), daemon=True).start()
        futures.append(future)
    return futures


def wait_until(true: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Return as soon as `true()` holds.

    Raises:
        HungError: it does not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise hung(f"{otherwise} within {seconds:g} s")
        time.sleep(0.002)


def hung(message: str) -> HungError:
    """Write the stacks of all threads to standard error and return the error to raise."""
    sys.stderr.write(f"{message}; all threads:\n")
    sys.stderr.flush()
    faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
    return HungError(message)


def _run(future: Started[Result], call: Callable[[], Result]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the waiting test
        future.set_exception(error)
