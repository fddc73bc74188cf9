"""Calls that may never return, from a thread that can be left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.suites.missing_key.case import WrongError

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what `call` returns, from a thread that may be left behind.

    Raises:
        WrongError: it did not return in time.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise WrongError(f"raised {failure[0]!r}") from failure[0]
    if not result:
        raise WrongError(f"did not return within {seconds:.1f} s")
    return result[0]
