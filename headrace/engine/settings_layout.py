"""The checks of how a prefill pod is laid out: its ranks, its model, its memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.engine.settings_command import given
from headrace.engine.settings_plan import Plan, Refusal, unshard
from headrace.errors import SettingsError

GIB = 1024**3
# Tokens of a block of vLLM's sparse latent attention; a chunk is copied in whole blocks.
BLOCK = 64


def _parallel(plan: Plan) -> Iterator[Refusal]:
    for setting, value, why in (
        ("--pp", plan.pod.pp, "two stages would write one key"),
        ("--dcp", plan.pod.dcp, "the ranks would hold parts of the KV"),
    ):
        if plan.sharded and value > 1:
            yield Refusal(setting, f"1 with pcp_shard_store ({why})", str(value),
                          f"leave {setting} out, or {unshard(plan)}")  # fmt: skip
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
        yield Refusal("model", expected, "--no-mla", unshard(plan))
    elif not config.is_file():
        yield Refusal("model", expected, f"{plan.pod.model}, whose config.json is not here",
                      "name its folder, or add --mla if it has it")  # fmt: skip
    elif not _config(config).get("kv_lora_rank"):
        yield Refusal("model", expected, f"no kv_lora_rank in {config}", unshard(plan))


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
    block = given(plan.pod.extra_args, "--block-size")
    if block and int(plan.settings["chunk_size"]) % block:
        yield Refusal(
            "--block-size", f"a divisor of chunk_size ({plan.settings['chunk_size']}), as a chunk "
            "is copied in whole blocks", str(block), "leave --block-size out",
        )  # fmt: skip
    if plan.pod.longest_prompt > plan.pod.max_model_len:
        yield Refusal("--longest-prompt", f"at most --max-model-len ({plan.pod.max_model_len})",
                      str(plan.pod.longest_prompt), "lower it")  # fmt: skip


def _failed_loads(plan: Plan) -> Iterator[Refusal]:
    if plan.pod.load_failure_policy == "recompute" and plan.pod.pcp > 1:
        yield Refusal(
            "--load-failure-policy", "fail with --pcp above 1: vLLM 0.31.0 answers wrongly after a "
            "recompute there (vllm issue 49250)", "recompute", "leave --load-failure-policy out",
        )  # fmt: skip


def _config(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as broken:
        raise SettingsError(
            f"{path}: expected a model's configuration, found {broken}; name the model's own folder"
        ) from broken
    if not isinstance(content, dict):
        raise SettingsError(
            f"{path}: expected a model's configuration, found JSON that is no object; "
            "name the model's own folder"
        )
    return content


POD_CHECKS: tuple[Callable[[Plan], Iterator[Refusal]], ...] = (
    _parallel, _cpu, _latent_attention, _l1_share, _chunks, _failed_loads,
)  # fmt: skip
