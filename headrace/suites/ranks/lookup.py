"""How a rank is asked what it has of a prompt, in both ways in which a scheduler asks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from headrace.suites.ranks.settings import Settings

_POLL_SECONDS = 0.002


class Answers:
    """Stands where the asynchronous lookup server does, and keeps what it was told to send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []

    def send_response_to_scheduler(self, lookup_id: str, tokens: int, *_: Any) -> None:
        self.sent.append((lookup_id, tokens))


def look_up(
    engine: Any, settings: Settings, answers: Answers, tokens: Sequence[int], request: str
) -> int:
    """Ask by hashes and return how many tokens were found; they are pinned for `request`.

    Args:
        answers: what the engine sends its answer to, if it loads asynchronously.
    """
    found = engine.token_database.process_tokens(tokens, make_key=False)
    hashes = [int(chunk_hash) for _, _, chunk_hash in found]
    offsets = [settings.chunk_size] * len(hashes)
    if not settings.asynchronous:
        return int(engine.lookup(hashes=hashes, offsets=offsets, lookup_id=request, pin=True))
    already = len(answers.sent)
    # The release has no attempts: it cannot tell the answers of two lookups apart.
    numbered = {"attempt": already + 1} if hasattr(engine, "pcp_shard") else {}
    engine.async_lookup_and_prefetch(request, hashes=hashes, offsets=offsets, pin=True, **numbered)
    while len(answers.sent) == already:
        time.sleep(_POLL_SECONDS)
    return answers.sent[-1][1]
