"""The address of L2: what cannot be one, and secrets, which no message may repeat."""

from __future__ import annotations

import pytest

from headrace.engine.settings import Prefill
from headrace.engine.settings_refusals import raise_if_refused
from headrace.errors import SettingsError

SECRET = "hunter2"


def _refusal(inherited: dict[str, str] | None = None, **values: object) -> str:
    chosen = Prefill(model="m", mla=True).model_copy(update=values)
    with pytest.raises(SettingsError) as refused:
        raise_if_refused(chosen, inherited or {})
    return str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"resp://me:{SECRET}@valkey-{{rank}}:6379", f"resp://:{SECRET}@v:1",
        f"resp://me:{SECRET}/x@v-{{rank}}:1", f"resp://me:{SECRET}@v-{{worker}}:1",
        f"redis://me:{SECRET}@v",
    ],
)  # fmt: skip
def test_a_login_goes_into_variables(url: str) -> None:
    said = _refusal(remote_url=url)
    assert said.count("\n") == 0
    assert said == (
        "remote_url: expected no user and no password in it, found one or both; "
        "set LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD"
    )


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (f"resp://v-{{rank}}:1?password={SECRET}", "a query behind resp://v-{rank}:1"),
        (f"resp://v-{{rank}}:1/?password={SECRET}", "a query behind resp://v-{rank}:1"),
        ("resp://v-{rank}:1/0", "a path behind resp://v-{rank}:1"),
        ("resp://v-{rank}:1/", "a path behind resp://v-{rank}:1"),
        (" resp://v-{rank}:1", "a blank before"),
        ("resp://v-{rank}:1\n", "a blank before"),
        ("resp://v-{rank}:0", "resp://v-{rank}:0"),
        ("resp://v-{rank}:65536", "resp://v-{rank}:65536"),
        ("resp://v w:1", "resp://v w:1"),
    ],
)
def test_an_address_is_a_host_and_a_port(url: str, found: str) -> None:
    said = _refusal(remote_url=url)
    assert said.startswith(f"remote_url: expected resp://HOST:PORT, found {found}")
    assert SECRET not in said


@pytest.mark.parametrize("name", ["LMCACHE_REMOTE_URL", "LMCACHE_EXTRA_CONFIG"])
def test_an_inherited_secret_is_not_shown(name: str) -> None:
    said = _refusal({name: f'{{"url": "resp://me:{SECRET}@v:1"}}'})
    assert said.startswith(f"{name}: expected unset")
    assert SECRET not in said


def test_a_secret_is_shown_by_no_other_check() -> None:
    extra = {"external_lookup_client": f"redis://me:{SECRET}@v:1"}
    assert SECRET not in _refusal(extra=extra)
    url = f"resp://me:{SECRET}@v:1"
    assert SECRET not in _refusal({"LMCACHE_REMOTE_URL": "x"}, remote_url=url)


@pytest.mark.parametrize("host", ["[::1]", "10.0.0.1", "valkey-lmcache-{rank}.vllm.svc"])
def test_these_are_addresses(host: str) -> None:
    raise_if_refused(Prefill(model="m", mla=True, remote_url=f"resp://{host}:6379"), {})


@pytest.mark.parametrize("host", [{}, {"internal_api_server_host": "0.0.0.0"}])
def test_lmcaches_own_server_stays_on_loopback(host: dict[str, str]) -> None:
    """It runs scripts that it is sent, and listens on all addresses by default."""
    said = _refusal(extra={"internal_api_server_enabled": True, **host})
    assert said.startswith("internal_api_server_host: expected 127.0.0.1")
    assert said.endswith("found 0.0.0.0; add --set internal_api_server_host=127.0.0.1")
    said = _refusal({"LMCACHE_INTERNAL_API_SERVER_ENABLED": "true"})
    assert said.startswith("internal_api_server_host: expected 127.0.0.1")
    here = {"internal_api_server_enabled": True, "internal_api_server_host": "127.0.0.1"}
    raise_if_refused(Prefill(model="m", mla=True, extra=here), {})
