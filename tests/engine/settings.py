"""How vLLM and LMCache are set for two ranks on a CPU, and where they are found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from headrace.pipeline.layout import Layout
from tests.suites.sites import ROOT, site

RANKS = 2
CHUNK = 256
LONGEST = 4608

# The image's settings (docker/Dockerfile), and how two ranks share two cores.
ENVIRONMENT = {
    "PYTHONFAULTHANDLER": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}


def cache_settings(remote_url: str, **more: object) -> dict[str, object]:
    """Return LMCache's settings: whole chunks, a local tier and a RESP tier."""
    return {
        "chunk_size": CHUNK,
        "save_unfull_chunk": False,
        "local_cpu": True,
        "max_local_cpu_size": 0.5,
        "remote_url": remote_url,
        "remote_serde": "naive",
        **more,
        "extra_config": {
            "save_chunk_meta": False,
            "resp_num_threads": 2,
            **dict(more.get("extra_config", {})),  # type: ignore[call-overload]
        },
    }


def engine_python() -> Path:
    """Return the Python of the environment that holds vLLM; HEADRACE_ENGINE names another.

    Raises:
        AssertionError: there is none.
    """
    folder = Path(os.environ.get("HEADRACE_ENGINE", Layout(ROOT).build / "engine"))
    python = folder / "bin" / "python"
    assert python.exists(), f"{folder}: expected an environment with vLLM, found none; make engine"
    return python


def engine_site() -> Path:
    """Return the LMCache that the engine runs: HEADRACE_SITE, or the patched build."""
    named = os.environ.get("HEADRACE_SITE")
    return Path(named) if named else site("patched")


def environment(cache: Mapping[str, object]) -> dict[str, str]:
    """Return the environment of an engine whose LMCache is set by `cache`."""
    settings = {
        f"LMCACHE_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in cache.items()
    }
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in {"PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH"}
    }
    path = os.pathsep.join([str(engine_site()), str(ROOT)])
    # Imports are most of a start. Byte code is kept, and not beside the sources.
    kept = {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(engine_python().parents[1] / "pycache")}
    return {**inherited, **ENVIRONMENT, **kept, **settings}


def arguments(model: Path) -> dict[str, object]:
    """Return vLLM's engine arguments for the checkpoint in `model`."""
    return {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": LONGEST,
        "max_num_batched_tokens": LONGEST,
        "max_num_seqs": 4,
        "tensor_parallel_size": RANKS,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "seed": 0,
        "worker_extension_cls": "tests.engine.worker_view.WorkerView",
        "kv_transfer_config": {
            "kv_connector": "LMCacheConnectorV1CPU",
            "kv_connector_module_path": "headrace.engine.cpu_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
        },
    }
