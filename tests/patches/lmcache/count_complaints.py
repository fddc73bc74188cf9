"""What LMCache says when a count falls below zero, and then sets it back to zero."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "is negative" in (line := record.getMessage()):
            self.lines.append(line)


@contextlib.contextmanager
def count_complaints() -> Iterator[list[str]]:
    """Collect, for the block, the warnings about references and pins released too often."""
    logger, handler = logging.getLogger("lmcache.v1.memory_management"), _Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
