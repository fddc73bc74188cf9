"""The address of L2, and what is said of an address that holds a secret: nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headrace.engine.settings_plan import Plan, Refusal

_EXPECTED = "resp://HOST:PORT"
_ADDRESS = re.compile(r"resp://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", re.ASCII)
_SECRETS = re.compile(r"[@?#]|pass|secret|token", re.IGNORECASE)


def shown(value: Any) -> str:
    """Return a setting's value for a message, without the text of one that may hold a secret."""
    text = str(value)
    return "a text that may hold a secret" if _SECRETS.search(text) else text


def remote_url_refusals(plan: Plan) -> Iterator[Refusal]:
    """Yield a refusal if L2 has an address that LMCache cannot use, or that tells a secret."""
    url = str(plan.settings.get("remote_url", ""))
    if not url:
        return
    if "@" in url:
        yield Refusal("remote_url", "no user and no password in it", "one or both",
                      "set LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD")  # fmt: skip
        return
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", url) if name != "rank"]
    rest = url.replace("{rank}", "0")
    if unknown or "{" in rest or "}" in rest:
        what = f"{{{unknown[0]}}}" if unknown else "an unpaired brace"
        yield Refusal("remote_url", "no placeholder but {rank}", f"{what} in {shown(url)}",
                      "write {rank} where a worker's rank goes")  # fmt: skip
        return
    address = _ADDRESS.fullmatch(rest)
    if not (address and 0 < int(address[2]) < 65536):
        yield Refusal("remote_url", _EXPECTED, _wrong(url),
                      "name the Valkey servers, for example resp://valkey-{rank}:6379")  # fmt: skip
    elif "{rank}" in url and not plan.sharded:
        yield Refusal(
            "remote_url", "no {rank} without pcp_shard_store", url,
            "add --sharded, or name one server for all ranks",
        )  # fmt: skip


def _wrong(url: str) -> str:
    """Name what follows the port, and show nothing of it: a query may hold a password."""
    if url != url.strip():
        return "a blank before or behind it"
    head, scheme, tail = url.rpartition("://")
    for sign, what in (("?", "a query"), ("#", "a fragment"), ("/", "a path")):
        if sign in tail:
            return f"{what} behind {head}{scheme}{re.split('[/?#]', tail)[0]}"
    return shown(url)
