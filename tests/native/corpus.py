"""Seeds of the fuzz target: every scripted reply, for each command, whole and in small pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from headrace.suites.missing_key.replies import REPLIES

# The target's first byte: which of its three readers gets the reply.
READERS = range(3)
WANTED = 100
# Third byte: everything at once, or pieces of a few bytes.
PIECES = (0, 0b00101010)
# Fourth byte: the stream ends as closed, by time-out, by an error.
ENDS = range(3)
# A longer body says nothing new, and libFuzzer would mutate mostly that.
MAX_BYTES = 8192


def seeds() -> Iterator[bytes]:
    """Yield inputs in the form that fuzz_reply.cpp describes."""
    value = bytes(range(256)) * 8
    for reply in REPLIES:
        wire = reply.bytes_for(value[:WANTED])[:MAX_BYTES]
        for reader in READERS:
            for pieces in PIECES:
                for end in ENDS:
                    yield bytes([reader, WANTED, pieces, end]) + wire


def write(folder: Path) -> None:
    """Put the seeds into a corpus folder; what fuzzing has found there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds():
        (folder / hashlib.sha256(seed).hexdigest()[:20]).write_bytes(seed)
