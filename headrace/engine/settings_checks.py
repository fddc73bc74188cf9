"""The checks of a prefill pod, one for each thing that cannot work together.

LMCache refuses most of it too, after the weights are loaded and on every rank. What it does not
refuse is worse: a placeholder that nobody replaces is a host that does not exist, and the engine
runs on without its second tier.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

from headrace.engine.settings_layout import POD_CHECKS
from headrace.engine.settings_lmcache import (
    NESTED,
    PREFIX,
    is_setting,
    known_settings,
    lmcache_environment,
)
from headrace.engine.settings_numbers import worker_ids
from headrace.engine.settings_plan import Plan, Refusal, leave_out, unshard
from headrace.engine.settings_remote import remote_url_refusals, shown

# Equal in every process, whatever its hash seed.
STABLE_HASHES = ("sha256_cbor", "sha256_cbor_64bit")
# What a rank waits for the others if nothing else is set.
SHARD_SECONDS = 60
# Kubernetes adds these for each service, and a service may have a name that starts with lmcache.
_OF_A_SERVICE = re.compile(r"\w+_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")


def _hashes(plan: Plan) -> Iterator[Refusal]:
    algorithm = str(plan.settings["pre_caching_hash_algorithm"])
    if plan.sharded and algorithm not in STABLE_HASHES:
        yield Refusal(
            "pre_caching_hash_algorithm", f"{' or '.join(STABLE_HASHES)} with pcp_shard_store",
            algorithm, "leave --hash-algorithm out",
        )  # fmt: skip


def _switches(plan: Plan) -> Iterator[Refusal]:
    """Settings that must be off: with the sharded store, or for any RESP server."""
    shard = (
        "use_layerwise", "enable_blending", "enable_scheduler_bypass_lookup", "enable_pd",
        "enable_p2p",
    )  # fmt: skip
    resp = ("save_unfull_chunk", "save_chunk_meta")
    has_remote = bool(plan.settings.get("remote_url"))
    for name in (*(shard if plan.sharded else ()), *resp):
        if plan.on(name) and (name in shard or plan.sharded or has_remote):
            beside = "pcp_shard_store" if plan.sharded else "a resp:// remote_url"
            yield Refusal(name, f"false with {beside}", "true", leave_out(plan, name))
    if plan.sharded:
        for name in ("save_only_first_rank", "remote_enable_mla_worker_id_as0"):
            if name in plan.settings[NESTED] and not plan.on(name):
                yield Refusal(name, "not to be false with pcp_shard_store: keys have one name on "
                              "all ranks", "false", leave_out(plan, name))  # fmt: skip
        for name in ("external_lookup_client", "maru_path"):
            if plan.settings.get(name):
                yield Refusal(
                    name, "none with pcp_shard_store", shown(plan.settings[name]),
                    leave_out(plan, name),
                )  # fmt: skip
    if has_remote and plan.settings.get("remote_serde") != "naive":
        yield Refusal("remote_serde", "naive", str(plan.settings.get("remote_serde")),
                      leave_out(plan, "remote_serde"))  # fmt: skip


def _lookup_servers(plan: Plan) -> Iterator[Refusal]:
    ids = worker_ids(plan)
    if plan.sharded and ids and sorted(ids) != list(range(plan.pod.ranks)):
        yield Refusal(
            "lookup_server_worker_ids",
            f"all {plan.pod.ranks} ranks, or none named, with pcp_shard_store", str(ids),
            leave_out(plan, "lookup_server_worker_ids"),
        )  # fmt: skip


def _timeouts(plan: Plan) -> Iterator[Refusal]:
    """A rank waits for the others' reads, each of which may take its whole time-out."""
    wait = plan.settings[NESTED].get("pcp_shard_timeout_secs", SHARD_SECONDS)
    read = int(plan.settings["blocking_timeout_secs"]) + 1
    if plan.sharded and float(wait) <= read:
        yield Refusal(
            "pcp_shard_timeout_secs", f"more than {read}, as long as a rank may read its chunks",
            str(wait), "lower --blocking-timeout, or set extra_config.pcp_shard_timeout_secs",
        )  # fmt: skip


def _internal_server(plan: Plan) -> Iterator[Refusal]:
    """LMCache 0.5.5's own server runs any script that is sent to it."""
    host = str(plan.settings.get("internal_api_server_host", "0.0.0.0"))  # noqa: S104  # its default
    if plan.on("internal_api_server_enabled") and host != "127.0.0.1":
        yield Refusal(
            "internal_api_server_host", "127.0.0.1 with internal_api_server_enabled: whoever "
            "reaches LMCache 0.5.5's server can run code in the engine", shown(host),
            "add --set internal_api_server_host=127.0.0.1",
        )  # fmt: skip


def _names(plan: Plan) -> Iterator[Refusal]:
    """Settings that LMCache does not have would be ignored without a word."""
    known = known_settings(plan.lmcache) if plan.lmcache else None
    for name in plan.settings:
        variable = PREFIX + name.upper()
        inherited = variable in plan.inherited
        if known is not None and name not in known:
            if inherited and _OF_A_SERVICE.fullmatch(variable):
                continue
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"write {close[0]}" if close else "see --set extra_config.NAME"
            yield Refusal(
                variable if inherited else name,
                f"one of the {len(known)} settings of the installed LMCache",
                repr(variable if inherited else name),
                f"{meant}, or {leave_out(plan, name)}",
            )  # fmt: skip
    if plan.sharded and plan.lmcache and not (plan.lmcache / "v1" / "pcp_shard").is_dir():
        yield Refusal("pcp_shard_store", "an LMCache that has the sharded store",
                      str(plan.lmcache), f"install headrace's, or {unshard(plan)}")  # fmt: skip


def _inherited(plan: Plan) -> Iterator[Refusal]:
    ours = lmcache_environment(plan.settings)
    for variable, found in sorted(plan.inherited.items()):
        if variable == "LMCACHE_CONFIG_FILE" and found:
            yield Refusal(variable, "unset: its settings would join these unseen", found,
                          "unset it, and give its settings as --set NAME=VALUE")  # fmt: skip
        elif is_setting(variable) and ours.get(variable, found) != found:
            yield Refusal(variable, f"unset, or {shown(ours[variable])}", shown(found),
                          "unset it, and use the option or --set")  # fmt: skip


CHECKS: tuple[Callable[[Plan], Iterator[Refusal]], ...] = (
    remote_url_refusals, _hashes, _switches, _lookup_servers, _timeouts, _internal_server,
    *POD_CHECKS, _names, _inherited,
)  # fmt: skip
