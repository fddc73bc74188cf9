"""The vLLM command line and environment of a pod, and what neither can cure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.settings import Decode, Pod, Prefill
from headrace.engine.settings_lmcache import (
    NESTED,
    installed_lmcache,
    lmcache_environment,
    lmcache_settings,
)

# What a user may not append: it would contradict what was checked. Short forms are vLLM's.
OWN_OPTIONS = frozenset(
    {
        "--model", "--host", "--port", "--tensor-parallel-size", "-tp",
        "--pipeline-parallel-size", "-pp",
        "--prefill-context-parallel-size", "-pcp", "--decode-context-parallel-size", "-dcp",
        "--enable-expert-parallel", "-ep", "--no-enable-expert-parallel", "--compilation-config",
        "-cc", "--kv-cache-dtype", "--max-model-len", "--speculative-config", "-sc",
        "--kv-transfer-config", "--disable-hybrid-kv-cache-manager", "--config",
        "--no-disable-hybrid-kv-cache-manager", "--enable-prompt-tokens-details",
        "--no-enable-prompt-tokens-details",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """How to start an engine: `environment` is added to what is there."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    limits: tuple[str, ...] = ()

    def shell(self) -> str:
        """Return it for a POSIX shell, one variable or option a line."""
        variables = [
            f"{shlex.quote(name)}={shlex.quote(value)}" for name, value in self.environment.items()
        ]
        lines: list[str] = []
        for word in self.command:
            if word.startswith("-") or not lines:
                lines.append(shlex.quote(word))
            else:
                lines[-1] += f" {shlex.quote(word)}"
        return " \\\n    ".join(["env", *variables, *lines])

    def json(self) -> str:
        """Return it for a machine."""
        data = {
            "command": self.command, "environment": self.environment, "limits": self.limits,
        }  # fmt: skip
        return json.dumps(data, indent=2)


def own_option(word: str) -> str | None:
    """Return which of `OWN_OPTIONS` a word of vLLM's command line may set, None if it sets none.

    vLLM takes _ for -, dotted parts, and any beginning that fits one option.
    """
    name = word.split("=", 1)[0].split(".", 1)[0]
    if name.startswith("--"):
        name = name.replace("_", "-")
    elif not name.startswith("-") or name == "-":
        return None
    found = (own for own in OWN_OPTIONS if own.startswith(name))
    return min(found, key=lambda own: (len(own), own), default=None)


def given(words: Sequence[str], option: str, short: str = "") -> int | None:
    """Return the whole number that vLLM's command line gives an option, None if it gives none.

    The last one counts, as for vLLM. What is no number is left to vLLM.
    """
    value = ""
    for word, following in zip(words, (*words[1:], ""), strict=False):
        name, equals, rest = word.partition("=")
        long = name.startswith("--") and option.startswith(name.replace("_", "-")) and name != "--"
        if long or (short and name == short):
            value = rest if equals else following
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else None


def launch(pod: Pod, inherited: Mapping[str, str]) -> Launch:
    """Return how to start `pod`; see `settings_refusals` for what it must pass first."""
    if isinstance(pod, Prefill):
        return _prefill(pod, inherited)
    if isinstance(pod, Decode):
        return Launch(
            (*_common(pod, _nixl(pod, "kv_consumer")), *pod.extra_args),
            _environment(pod),
            (*_unreachable(pod, inherited), *_DECODE_LIMITS),
        )
    raise TypeError(f"expected a prefill or a decode pod, found {type(pod).__name__}")


def _prefill(pod: Prefill, inherited: Mapping[str, str]) -> Launch:
    lmcache = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    if pod.cpu:
        lmcache["kv_connector"] = "LMCacheConnectorV1CPU"
        lmcache["kv_connector_module_path"] = "headrace.engine.cpu_connector"
    if pod.nixl:
        # Children take the engine id of the outer one; vLLM reads the policy there only, and
        # keeps blocks of unfinished loads only if the outer role is kv_both.
        transfer: dict[str, Any] = {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": [_nixl(pod, "kv_producer"), lmcache]},
        }
    else:
        transfer = dict(lmcache)
    transfer["kv_load_failure_policy"] = pod.load_failure_policy
    parallel = ["--prefill-context-parallel-size", str(pod.pcp)]
    if pod.pp > 1:
        parallel += ["--pipeline-parallel-size", str(pod.pp)]
    if pod.dcp > 1:
        parallel += ["--decode-context-parallel-size", str(pod.dcp)]
    if not pod.cpu:
        # vLLM 0.31.0 refuses CUDA graphs for sparse latent attention under prefill context
        # parallelism, and a step in a full graph passes over LMCache's load without a word.
        parallel += ["--compilation-config", json.dumps({"cudagraph_mode": "NONE"})]
    # What the engine inherits it has already, and passwords of it need not be printed.
    settings = lmcache_settings(pod)
    return Launch(
        (*_common(pod, transfer), *parallel, *pod.extra_args),
        {**_environment(pod, pod.nixl), **lmcache_environment(settings)},
        (
            *(_unreachable(pod, inherited) if pod.nixl else ()),
            *(_NIXL_LIMITS if pod.nixl and pod.pcp > 1 else ()),
            *_PREFILL_LIMITS,
            *_unchecked(pod),
        ),
    )


def _common(pod: Pod, transfer: Mapping[str, Any]) -> list[str]:
    words = [
        "vllm", "serve", pod.model, "--host", pod.host, "--port", str(pod.port),
        "--tensor-parallel-size", str(pod.tp), "--kv-cache-dtype", pod.kv_cache_dtype,
        "--max-model-len", str(pod.max_model_len), "--enable-prompt-tokens-details",
        # The pods compare this in their handshake, and LMCache's connector wants it off.
        "--disable-hybrid-kv-cache-manager", "--kv-transfer-config", json.dumps(transfer),
    ]  # fmt: skip
    if pod.expert_parallel:
        words.append("--enable-expert-parallel")
    if pod.mtp_tokens:
        draft = {"method": "mtp", "num_speculative_tokens": pod.mtp_tokens}
        words += ["--speculative-config", json.dumps(draft)]
    return words


def _nixl(pod: Pod, role: str) -> dict[str, Any]:
    return {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"backends": [pod.nixl_backend]},
    }


def _environment(pod: Pod, nixl: bool = True) -> dict[str, str]:
    # A common seed: vLLM's block hashes, from which LMCache's start, depend on it.
    environment = {"PYTHONHASHSEED": "0"}
    if nixl:
        environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(pod.nixl_port)
        if pod.nixl_host:
            environment[_NIXL_HOST] = pod.nixl_host
    return environment


def _unreachable(pod: Pod, inherited: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is to be said of a pod whose NIXL has no address."""
    if pod.nixl_host or inherited.get(_NIXL_HOST):
        return ()
    return (
        "NIXL answers at localhost only, where other pods cannot reach this one; add --nixl-host "
        f"with the pod's address, or set {_NIXL_HOST}",
    )


def _unchecked(pod: Prefill) -> tuple[str, ...]:
    """Return what is to be said of settings whose names nothing here can tell from a slip."""
    names = [name for name in pod.extra if not name.startswith(f"{NESTED}.")]
    if not names or installed_lmcache():
        return ()
    return (f"--set {', '.join(names)}: not checked: no lmcache is installed here",)


_NIXL_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"


_NIXL_LIMITS = (
    "vLLM 0.31.0: ranks above 0 do not report a handed-off prompt as sent, so its blocks are "
    "never freed; the pod needs headrace's vLLM patch for NIXL, which is not written yet",
)
_PREFILL_LIMITS = (
    "LMCache 0.5.5: a model with indexer caches (GLM-5.x, DeepSeek-V3.2) stops at its first store "
    "in the in-process mode; it needs a patch for layer groups, which is not written yet",
)
_DECODE_LIMITS = (
    "the prefill pods must run the same vLLM version with the same model name, attention backend, "
    "KV dtype and draft tokens, or NIXL refuses the handshake",
)
