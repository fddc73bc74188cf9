"""LMCache's variables that an engine would inherit: which are settings, what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.engine import settings_command
from headrace.engine.settings import Decode, Pod, Prefill
from headrace.engine.settings_checks import CHECKS
from headrace.engine.settings_command import launch
from headrace.engine.settings_lmcache import known_settings, lmcache_settings
from headrace.engine.settings_plan import Plan

# Not one of them changes how LMCache caches.
OTHERS = (
    "LMCACHE_LOG_LEVEL", "LMCACHE_FORCE_SKIP_SAVE", "LMCACHE_MQ_TIMEOUT",
    "LMCACHE_USAGE_TRACK_URL", "LMCACHE_USAGE_TRACK_INTERVAL", "LMCACHE_RESP_PASSWORD",
    "LMCACHE_AEROSPIKE_PASSWORD", "LMCACHE_EC_CHUNK_SIZE", "LMCACHE_DEVICE_BACKEND",
    "LMCACHE_SERVICE_HOST", "LMCACHE_PORT", "LMCACHE_REMOTE_SERVICE_PORT_RESP",
    "LMCACHE_REMOTE_PORT_6379_TCP_ADDR",
)  # fmt: skip


def test_names_that_lmcache_does_not_have_are_refused(tmp_path: Path) -> None:
    """Both ways in which LMCache writes its tables: with a type and without."""
    known = _lmcache(tmp_path)
    assert known_settings(tmp_path) == frozenset([*known, "old"])
    chosen = Prefill(model="m", mla=True, extra={"chunk_sise": 1})
    said = _said(chosen, {}, tmp_path)
    assert said[0].endswith("found 'chunk_sise'; write chunk_size, or leave --set chunk_sise out")
    assert [line.split(":")[0] for line in said] == ["chunk_sise", "pcp_shard_store"]
    (tmp_path / "v1" / "pcp_shard").mkdir()
    said = _said(chosen, {}, tmp_path)
    assert [line.split(":")[0] for line in said] == ["chunk_sise"]


def test_a_variable_that_lmcache_does_not_read_is_refused_by_its_name(tmp_path: Path) -> None:
    _lmcache(tmp_path)
    (tmp_path / "v1" / "pcp_shard").mkdir()
    said = _said(Prefill(model="m", mla=True), {"LMCACHE_CHUNK_SISE": "1"}, tmp_path)
    assert len(said) == 1
    assert said[0].startswith("LMCACHE_CHUNK_SISE: expected one of the ")
    assert said[0].endswith("write chunk_size, or unset LMCACHE_CHUNK_SISE")


@pytest.mark.parametrize("variable", OTHERS)
def test_what_lmcache_reads_beside_its_settings_is_not_refused(
    variable: str, tmp_path: Path
) -> None:
    _lmcache(tmp_path)
    (tmp_path / "v1" / "pcp_shard").mkdir()
    assert _said(Prefill(model="m", mla=True), {variable: "x"}, tmp_path) == []


def test_what_is_inherited_is_not_printed() -> None:
    """The engine has it already, and it may hold a password."""
    inherited = {"LMCACHE_REMOTE_CONFIG_URL": "http://me:hunter2@h", "LMCACHE_CACHE_POLICY": "LFU"}
    how = launch(Prefill(model="m", mla=True), inherited)
    assert not set(how.environment) & set(inherited)
    assert "hunter2" not in how.shell() + how.json()


@pytest.mark.parametrize("pod", [Prefill(model="m"), Decode(model="m")])
def test_a_nixl_that_no_pod_can_reach_is_said(pod: Pod) -> None:
    named = pod.model_copy(update={"nixl_host": "10.0.0.1"})
    inherited = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1"}
    assert _of_nixl(launch(pod, {}).limits) == 1
    assert _of_nixl(launch(pod, inherited).limits) == 0
    assert _of_nixl(launch(named, {}).limits) == 0
    assert _of_nixl(launch(Prefill(model="m", nixl=False), {}).limits) == 0


def test_a_name_that_cannot_be_checked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Prefill(model="m", extra={"nope_nope": 1, "extra_config.x": 1})
    for lmcache, notes in ((None, 1), (Path("lmcache"), 0)):
        monkeypatch.setattr(settings_command, "installed_lmcache", lambda found=lmcache: found)
        said = [text for text in launch(chosen, {}).limits if "no lmcache is installed" in text]
        assert len(said) == notes
        assert all(text.startswith("--set nope_nope: ") for text in said)
        quiet = Prefill(model="m", extra={"extra_config.x": 1})
        assert not any("lmcache is installed" in text for text in launch(quiet, {}).limits)


def test_decode_says_all_that_nixl_compares() -> None:
    (said,) = (text for text in launch(Decode(model="m"), {}).limits if "handshake" in text)
    for what in ("vLLM version", "model name", "attention backend", "KV dtype", "draft tokens"):
        assert what in said


def _of_nixl(limits: tuple[str, ...]) -> int:
    return sum("add --nixl-host" in text for text in limits)


def _lmcache(folder: Path) -> list[str]:
    """Write the tables of an LMCache that knows what we set, and return its names."""
    config = folder / "v1" / "config.py"
    config.parent.mkdir()
    known = [*lmcache_settings(Prefill(model="m"))]
    table = ", ".join(f'"{name}": {{"type": int}}' for name in known)
    config.write_text(f"_CONFIG_ALIASES = {{'old': 'x'}}\n_CONFIG_DEFINITIONS: dict = {{{table}}}")
    return known


def _said(pod: Prefill, inherited: Mapping[str, str], lmcache: Path) -> list[str]:
    plan = Plan(pod, lmcache_settings(pod, inherited), inherited, lmcache)
    return [str(refusal) for check in CHECKS for refusal in check(plan)]
