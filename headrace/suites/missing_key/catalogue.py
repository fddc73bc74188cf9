"""All cases, in the groups that share a process."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.suites.missing_key.case import Case
from headrace.suites.missing_key.completions import completion_cases
from headrace.suites.missing_key.connections import connection_cases
from headrace.suites.missing_key.connector import connector_cases
from headrace.suites.missing_key.keys import key_cases
from headrace.suites.missing_key.lost_keys import lost_key_cases
from headrace.suites.missing_key.scripted import reply_cases


def groups() -> Mapping[str, tuple[Case, ...]]:
    """Return the cases by group. Two groups run at a time, the first ones first."""
    replies = tuple(reply_cases())
    return {
        "replies-to-get": tuple(case for case in replies if case.name.startswith("reply/GET/")),
        "replies-to-others": tuple(
            case for case in replies if not case.name.startswith("reply/GET/")
        ),
        "keys": (*key_cases(), *lost_key_cases(), *connection_cases()),
        "connector": (*completion_cases(), *connector_cases()),
    }
