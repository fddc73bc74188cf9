"""Which of LMCache's settings are numbers, and whether a value is one.

LMCache takes its own default for a number that it cannot read, with a warning in the log. All
other checks compute with these values, so this one comes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.engine.settings import MOST_GIB, MOST_THREADS
from headrace.engine.settings_lmcache import NESTED
from headrace.engine.settings_plan import Plan, Refusal, leave_out

# Above it a double no longer tells two whole numbers apart; nothing here counts that far.
_MOST = 2.0**53 - 1
_DAY = 24 * 60 * 60


class _Number(NamedTuple):
    """What one setting must be: whole or not, at least (or, if not whole, above) `low`, and at
    most `high`.
    """

    setting: str
    whole: bool
    low: int
    high: float = _MOST

    def __str__(self) -> str:
        words = f"whole number of at least {self.low}" if self.whole else f"number above {self.low}"
        return f"a {words}" + ("" if self.high == _MOST else f" and at most {self.high}")

    def holds(self, value: Any) -> bool:
        """Return whether LMCache would read `value` as such a number."""
        if isinstance(value, str):
            # A variable of the environment is text.
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return False
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.whole:
            return isinstance(value, int) and self.low <= value <= self.high
        return self.low < value <= self.high


_NUMBERS = (
    _Number("chunk_size", True, 1),
    _Number("max_local_cpu_size", False, 0, MOST_GIB),
    _Number("blocking_timeout_secs", True, 1),
    _Number("lookup_timeout_ms", True, 1),
    _Number("min_retrieve_tokens", True, 0),
    _Number("pin_timeout_sec", True, 1),
    _Number("pin_check_interval_sec", True, 1),
    _Number("extra_config.pcp_shard_timeout_secs", False, 0, _DAY),
    _Number("extra_config.resp_num_threads", True, 1, MOST_THREADS),
    _Number("extra_config.lookup_backoff_time", False, 0, _DAY),
)
_RANKS = "lookup_server_worker_ids"


def number_refusals(plan: Plan) -> Iterator[Refusal]:
    """Yield a refusal for each setting that must be a number, or ranks, and is not."""
    for number in _NUMBERS:
        outer, dot, inner = number.setting.partition(".")
        settings = plan.settings[NESTED] if dot else plan.settings
        name = inner or outer
        if name in settings and not number.holds(settings[name]):
            yield Refusal(number.setting, str(number), repr(settings[name]),
                          leave_out(plan, number.setting))  # fmt: skip
    if worker_ids(plan) is None:
        yield Refusal(_RANKS, "numbers of ranks, separated by commas",
                      repr(plan.settings[_RANKS]), leave_out(plan, _RANKS))  # fmt: skip


def worker_ids(plan: Plan) -> list[int] | None:
    """Return the ranks that answer lookups, [] if none are named, None if they are no ranks."""
    value = plan.settings.get(_RANKS, [])
    if isinstance(value, str):
        if not re.fullmatch(r"\s*(\d{1,6}\s*(,\s*\d{1,6}\s*)*,?\s*)?", value, re.ASCII):
            return None
        return [int(word) for word in re.findall(r"\d+", value)]
    ids = value if isinstance(value, list) else [value]
    if all(_Number(_RANKS, True, 0).holds(one) and isinstance(one, int) for one in ids):
        return ids
    return None
