"""The checks of a prefill pod, one for each thing that cannot work together.

LMCache refuses most of it too, after the weights are loaded and on every rank. What it does not
refuse is worse: a placeholder that nobody replaces is a host that does not exist, and the engine
runs on without its second tier.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.engine.settings_lmcache import (
    NESTED,
    is_setting,
    known_settings,
    lmcache_environment,
)
from headrace.engine.settings_numbers import worker_ids
from headrace.engine.settings_plan import Plan, Refusal, leave_out
from headrace.errors import SettingsError

GIB = 1024**3
# Tokens of a block of vLLM's sparse latent attention; a chunk is copied in whole blocks.
BLOCK = 64
# Equal in every process, whatever its hash seed.
STABLE_HASHES = ("sha256_cbor", "sha256_cbor_64bit")
# What a rank waits for the others if nothing else is set.
SHARD_SECONDS = 60


def _remote_url(plan: Plan) -> Iterator[Refusal]:
    url = str(plan.settings.get("remote_url", ""))
    if not url:
        return
    unknown = [name for name in re.findall(r"\{([^{}]*)\}", url) if name != "rank"]
    rest = url.replace("{rank}", "0")
    if unknown or "{" in rest or "}" in rest:
        what = f"{{{unknown[0]}}}" if unknown else "an unpaired brace"
        yield Refusal("remote_url", "no placeholder but {rank}", f"{what} in {url}",
                      "write {rank} where a worker's rank goes")  # fmt: skip
        return
    if "{rank}" in url and not plan.sharded:
        yield Refusal(
            "remote_url", "no {rank} without pcp_shard_store", url,
            "add --sharded, or name one server for all ranks",
        )  # fmt: skip
    try:
        parts = urlsplit(rest)
        whole = parts.scheme == "resp" and parts.hostname and parts.port
    except ValueError:
        whole = None
    if not whole:
        yield Refusal("remote_url", "resp://HOST:PORT", url,
                      "name the Valkey servers, for example resp://valkey-{rank}:6379")  # fmt: skip


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
                    name, "none with pcp_shard_store", str(plan.settings[name]),
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


def _parallel(plan: Plan) -> Iterator[Refusal]:
    for setting, value, why in (
        ("--pp", plan.pod.pp, "two stages would write one key"),
        ("--dcp", plan.pod.dcp, "the ranks would hold parts of the KV"),
    ):
        if plan.sharded and value > 1:
            yield Refusal(setting, f"1 with pcp_shard_store ({why})", str(value),
                          f"leave {setting} out, or add --no-sharded")  # fmt: skip
    if plan.pod.pcp > 1 and plan.pod.pp > 1 and not plan.sharded:
        yield Refusal("--pp", "1 with --pcp above 1 (vLLM 0.31.0)", str(plan.pod.pp),
                      "leave --pp out")  # fmt: skip


def _cpu(plan: Plan) -> Iterator[Refusal]:
    pod = plan.pod
    for setting, bad, expected, found in (
        ("--pcp", pod.pcp > 1, "1", str(pod.pcp)),
        ("--nixl", pod.nixl, "--no-nixl", "--nixl"),
        ("--kv-cache-dtype", pod.kv_cache_dtype != "auto", "auto", pod.kv_cache_dtype),
    ):
        if pod.cpu and bad:
            yield Refusal(setting, f"{expected} with --cpu", found,
                          "add --pcp 1 --no-nixl --kv-cache-dtype auto")  # fmt: skip


def _latent_attention(plan: Plan) -> Iterator[Refusal]:
    if not plan.sharded or plan.pod.mla:
        return
    expected = "a model with multi-head latent attention for pcp_shard_store"
    config = Path(plan.pod.model) / "config.json"
    if plan.pod.mla is False:
        yield Refusal("model", expected, "--no-mla", "add --no-sharded")
    elif not config.is_file():
        yield Refusal("model", expected, f"{plan.pod.model}, whose config.json is not here",
                      "name its folder, or add --mla if it has it")  # fmt: skip
    elif not _config(config).get("kv_lora_rank"):
        yield Refusal("model", expected, f"no kv_lora_rank in {config}", "add --no-sharded")


def _l1_share(plan: Plan) -> Iterator[Refusal]:
    """The smallest budget that works is one longest prompt's share on the most loaded rank."""
    pod = plan.pod
    chunk, ranks = int(plan.settings["chunk_size"]), pod.ranks if plan.sharded else 1
    budget = float(plan.settings["max_local_cpu_size"]) * GIB
    need = math.ceil(pod.longest_prompt // chunk / ranks) * chunk * pod.bytes_per_token
    if budget / ranks < need:
        yield Refusal(
            "--l1-gib",
            f"at least {math.ceil(need * ranks / GIB * 10) / 10:g}: {need / 1e9:.2f} GB on each of "
            f"{ranks} ranks for {pod.longest_prompt} tokens",
            f"{budget / GIB:g}, {budget / ranks / 1e9:.2f} GB a rank",
            "raise --l1-gib, or lower --longest-prompt",
        )  # fmt: skip


def _chunks(plan: Plan) -> Iterator[Refusal]:
    if int(plan.settings["chunk_size"]) % BLOCK:
        yield Refusal("chunk_size", f"a multiple of {BLOCK}, the tokens of a block",
                      str(plan.settings["chunk_size"]), "leave --chunk-size out")  # fmt: skip
    if plan.pod.longest_prompt > plan.pod.max_model_len:
        yield Refusal("--longest-prompt", f"at most --max-model-len ({plan.pod.max_model_len})",
                      str(plan.pod.longest_prompt), "lower it")  # fmt: skip


def _failed_loads(plan: Plan) -> Iterator[Refusal]:
    if plan.pod.load_failure_policy == "recompute" and plan.pod.pcp > 1:
        yield Refusal(
            "--load-failure-policy", "fail with --pcp above 1: vLLM 0.31.0 answers wrongly after a "
            "recompute there (vllm issue 49250)", "recompute", "leave --load-failure-policy out",
        )  # fmt: skip


def _names(plan: Plan) -> Iterator[Refusal]:
    """Settings that LMCache does not have would be ignored without a word."""
    known = known_settings(plan.lmcache) if plan.lmcache else None
    for name in plan.settings:
        if known is not None and name not in known:
            yield Refusal(name, f"one of the {len(known)} settings of the installed LMCache",
                          "another name", "see --set extra_config.NAME")  # fmt: skip
    if plan.sharded and plan.lmcache and not (plan.lmcache / "v1" / "pcp_shard").is_dir():
        yield Refusal("pcp_shard_store", "an LMCache that has the sharded store",
                      str(plan.lmcache), "install headrace's, or add --no-sharded")  # fmt: skip


def _inherited(plan: Plan) -> Iterator[Refusal]:
    ours = lmcache_environment(plan.settings)
    for variable, found in sorted(plan.inherited.items()):
        if variable == "LMCACHE_CONFIG_FILE" and found:
            yield Refusal(variable, "unset: its settings would join these unseen", found,
                          "unset it, and give its settings as --set NAME=VALUE")  # fmt: skip
        elif is_setting(variable) and ours.get(variable, found) != found:
            yield Refusal(variable, f"unset, or {ours[variable]}", found,
                          "unset it, and use the option or --set")  # fmt: skip


def _config(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as broken:
        raise SettingsError(f"{path}: expected a model's configuration, found {broken}") from broken
    return content if isinstance(content, dict) else {}


CHECKS: tuple[Callable[[Plan], Iterator[Refusal]], ...] = (
    _remote_url, _hashes, _switches, _lookup_servers, _timeouts, _parallel, _cpu,
    _latent_attention, _l1_share, _chunks, _failed_loads, _names, _inherited,
)  # fmt: skip
