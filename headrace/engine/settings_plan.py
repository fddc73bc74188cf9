"""All that a prefill engine would see, and what is said of a setting that cannot stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headrace.engine.settings import Prefill
from headrace.engine.settings_lmcache import NESTED, PREFIX, installed_lmcache, lmcache_settings

_TRUE = ("true", "1", "yes", "on")


class Refusal(NamedTuple):
    """One setting that cannot stay as it is."""

    setting: str
    expected: str
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.setting}: expected {self.expected}, found {self.found}; {self.advice}"


@dataclass(frozen=True)
class Plan:
    """A prefill pod with all that its engine would see.

    Attributes:
        settings: LMCache's, complete.
        inherited: the environment that the engine would inherit.
        lmcache: folder of the installed package, None if there is none.
    """

    pod: Prefill
    settings: Mapping[str, Any]
    inherited: Mapping[str, str] = field(default_factory=dict)
    lmcache: Path | None = None

    def on(self, name: str) -> bool:
        value = self.settings.get(name, self.settings[NESTED].get(name, False))
        return value.lower() in _TRUE if isinstance(value, str) else bool(value)

    @property
    def sharded(self) -> bool:
        return self.on("pcp_shard_store")


def plan_of(pod: Prefill, inherited: Mapping[str, str]) -> Plan:
    """Return the plan for this machine."""
    return Plan(pod, lmcache_settings(pod, inherited), inherited, installed_lmcache())


def leave_out(plan: Plan, name: str) -> str:
    """Return what to do about a setting that may not be there."""
    variable = PREFIX + name.upper()
    return f"unset {variable}" if variable in plan.inherited else f"leave --set {name} out"


def unshard(plan: Plan) -> str:
    """Return how to give the sharded store up, with the address that only it can use."""
    if "{rank}" in str(plan.settings.get("remote_url", "")):
        return "add --no-sharded and --remote-url resp://HOST:PORT, one server for all ranks"
    return "add --no-sharded"
