"""What LMCache says when a count falls below zero, or an object is lost with a count above it.

It sets the one back to zero, and lets the garbage collector free the other.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_COMPLAINTS = ("is negative", "is being garbage collected")


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if any(complaint in line for complaint in _COMPLAINTS):
            self.lines.append(line)


@contextlib.contextmanager
def count_complaints() -> Iterator[list[str]]:
    """Collect, for the block, warnings of references and pins released too often, or never."""
    logger, handler = logging.getLogger("lmcache.v1.memory_management"), _Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
