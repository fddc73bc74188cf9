"""LMCache's settings for a prefill pod, and the environment variables that carry them."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.engine.settings import Prefill
from headrace.errors import SettingsError

PREFIX = "LMCACHE_"
NESTED = "extra_config"

# What can be a variable's name, and a word of a shell, with no quotes.
_KEY = re.compile(r"\w+(\.\w+)*", re.ASCII)

# Variables that LMCache 0.5.5 reads beside its settings. They say nothing about how it caches.
_OTHER_VARIABLES = frozenset(
    {
        "CONFIG_FILE", "DEVICE_BACKEND", "DISABLE_BANNER", "FORCE_SKIP_SAVE",
        "GPU_STAGING_BUFFER_BYTES", "LOG_LEVEL", "MP_TRANSFER_MODE", "MQ_TIMEOUT",
        "OFFLOAD_RPC_PORT", "SERVER_URL", "TRACK_USAGE", "USAGE_TRACK_INTERVAL", "USAGE_TRACK_URL",
    }
)  # fmt: skip
_OTHER_PREFIXES = (
    "AEROSPIKE_", "CONTROLLER_CONFIG_", "COORDINATOR_", "EC_", "MUSA_", "PLUGIN_",
    "REQUEST_TELEMETRY_", "RESP_", "RUNTIME_PLUGIN_CONFIG", "RUNTIME_PLUGIN_ROLE",
    "RUNTIME_PLUGIN_WORKER_",
)  # fmt: skip


def lmcache_settings(pod: Prefill, inherited: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return every setting that the engine would have, with nested ones under "extra_config".

    Args:
        pod: whose `extra` settings win over the others.
        inherited: the environment that the engine would inherit, for the checks: its LMCache
            variables that we do not set count as well, as plain text.

    Raises:
        SettingsError: a nested setting is given beside a whole "extra_config".
    """
    settings: dict[str, Any] = {
        "chunk_size": pod.chunk_size,
        "pre_caching_hash_algorithm": pod.hash_algorithm,
        "local_cpu": True,
        "max_local_cpu_size": pod.l1_gib,
        "save_unfull_chunk": False,
        "use_layerwise": False,
        "enable_blending": False,
        "use_gpu_connector_v3": pod.gpu_connector_v3,
        "enable_async_loading": pod.async_loading,
        "blocking_timeout_secs": pod.blocking_timeout_s,
        "lookup_timeout_ms": pod.lookup_timeout_ms,
    }
    if pod.remote_url:
        settings |= {"remote_url": pod.remote_url, "remote_serde": "naive"}
    nested: dict[str, Any] = {
        "pcp_shard_store": pod.sharded,
        "resp_num_threads": pod.resp_threads,
        "save_chunk_meta": False,
        "lookup_backoff_time": pod.lookup_backoff_s,
    }
    for variable, text in (inherited or {}).items():
        name = variable.removeprefix(PREFIX).lower()
        if is_setting(variable) and name not in settings and name != NESTED:
            settings[name] = text
    for name, value in pod.extra.items():
        if name == NESTED:
            raise SettingsError(
                f"--set {NESTED}: expected its settings one by one, found all of it; "
                f"write --set {NESTED}.NAME=VALUE"
            )
        outer, dot, inner = name.partition(".")
        if dot and outer == NESTED:
            nested[inner] = value
        else:
            settings[name] = value
    return settings | {NESTED: nested}


def is_setting(variable: str) -> bool:
    """Return whether `variable` is meant as one of LMCache's settings."""
    name = variable.removeprefix(PREFIX)
    return (
        variable.startswith(PREFIX)
        and name not in _OTHER_VARIABLES
        and not name.startswith(_OTHER_PREFIXES)
    )


def lmcache_environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings as environment variables."""
    return {PREFIX + name.upper(): _text(value) for name, value in settings.items()}


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Return KEY=VALUE texts as settings; a value that is JSON is taken as JSON.

    Raises:
        SettingsError: a text has no "=", a key is no name, or comes twice.
    """
    parsed: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key):
            raise SettingsError(
                f"--set {text!r}: expected KEY=VALUE; for example --set cache_policy=LFU"
            )
        if not _KEY.fullmatch(key):
            raise SettingsError(
                f"--set: expected a KEY of letters, digits, _ and dots between, found {key!r}; "
                "for example --set cache_policy=LFU"
            )
        if key in parsed:
            raise SettingsError(f"--set {key}: expected one value, found two; leave one out")
        try:
            parsed[key] = json.loads(value)
        except (ValueError, RecursionError):
            parsed[key] = {"True": True, "False": False}.get(value, value)
    return parsed


def installed_lmcache() -> Path | None:
    """Return the folder of the installed `lmcache` package, without importing it."""
    try:
        found = importlib.util.find_spec("lmcache")
    except ValueError:
        return None
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations)))


def has_sharded_store(lmcache: Path) -> bool:
    """Return whether a `lmcache` package can give each rank the chunks that it owns."""
    return (lmcache / "v1" / "pcp_shard").is_dir()


def known_settings(lmcache: Path) -> frozenset[str] | None:
    """Return the names of LMCache's settings, old names included; None if they are not found.

    They are read from the source: importing it costs seconds and loads torch.
    """
    try:
        tree = ast.parse((lmcache / "v1" / "config.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    names: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and target.id in ("_CONFIG_DEFINITIONS", "_CONFIG_ALIASES"):
            keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
            names |= {key for key in keys if isinstance(key, str)}
    return frozenset(names) or None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and all(isinstance(one, int | float | str) for one in value):
        # LMCache splits the text at commas; brackets would cost it the whole list.
        return ",".join(map(str, value))
    return json.dumps(value)
