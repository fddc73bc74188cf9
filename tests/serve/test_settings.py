"""The deployment's settings: the defaults, and everything that is refused before a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.settings import Decode, Prefill, pod
from headrace.engine.settings_command import launch
from headrace.engine.settings_lmcache import lmcache_settings, parse_assignments
from headrace.engine.settings_refusals import raise_if_refused
from headrace.errors import SettingsError


def test_the_defaults_are_the_deployments() -> None:
    how = launch(Prefill(model="m", mla=True), {})
    environment = how.environment
    assert (
        environment["LMCACHE_REMOTE_URL"]
        == "resp://valkey-lmcache-{rank}.vllm.svc.cluster.local:6379"
    )
    assert environment["LMCACHE_ENABLE_ASYNC_LOADING"] == "True"
    extra = json.loads(environment["LMCACHE_EXTRA_CONFIG"])
    assert extra["pcp_shard_store"] is True
    assert extra["resp_num_threads"] == 32
    assert extra["save_chunk_meta"] is False
    assert environment["LMCACHE_PRE_CACHING_HASH_ALGORITHM"] == "sha256_cbor"
    assert environment["LMCACHE_SAVE_UNFULL_CHUNK"] == "False"
    assert environment["PYTHONHASHSEED"] == "0"
    assert _option(how.command, "--prefill-context-parallel-size") == "8"
    assert json.loads(_option(how.command, "--compilation-config")) == {"cudagraph_mode": "NONE"}
    assert "--enable-expert-parallel" in how.command


def test_a_prefill_pod_asks_nixl_first_then_lmcache() -> None:
    transfer = json.loads(_option(launch(Prefill(model="m"), {}).command, "--kv-transfer-config"))
    assert (transfer["kv_connector"], transfer["kv_role"]) == ("MultiConnector", "kv_both")
    assert transfer["kv_load_failure_policy"] == "fail"
    children = transfer["kv_connector_extra_config"]["connectors"]
    assert [(child["kv_connector"], child["kv_role"]) for child in children] == [
        ("NixlConnector", "kv_producer"),
        ("LMCacheConnectorV1", "kv_both"),
    ]
    # vLLM passes the engine id to each child beside these, and a second one is a TypeError.
    assert not any("engine_id" in child for child in children)


def test_a_decode_pod_takes_over_nixl_and_agrees_with_prefill() -> None:
    prefill, decode = Prefill(model="m", mtp_tokens=1), Decode(model="m", mtp_tokens=1)
    there, here = launch(prefill, {}).command, launch(decode, {}).command
    transfer = json.loads(_option(here, "--kv-transfer-config"))
    assert (transfer["kv_connector"], transfer["kv_role"]) == ("NixlConnector", "kv_consumer")
    for option in ("--kv-cache-dtype", "--speculative-config", "--max-model-len"):
        assert _option(there, option) == _option(here, option)
    assert "--disable-hybrid-kv-cache-manager" in here
    assert not [name for name in launch(decode, {}).environment if name.startswith("LMCACHE_")]


def test_the_cpu_gets_the_connector_that_lmcache_lacks() -> None:
    chosen = Prefill(model="m", mla=True, cpu=True, pcp=1, nixl=False, kv_cache_dtype="auto")
    raise_if_refused(chosen, {})
    transfer = json.loads(_option(launch(chosen, {}).command, "--kv-transfer-config"))
    assert transfer["kv_connector_module_path"] == "headrace.engine.cpu_connector"


def test_what_works_is_not_refused() -> None:
    raise_if_refused(Prefill(model="m", mla=True), {"LMCACHE_LOG_LEVEL": "ERROR"})
    raise_if_refused(Decode(model="m"), {})


@pytest.mark.parametrize(
    "change",
    [
        {"port": 5600, "nixl": False},
        {"port": 5604, "extra_args": ("--data-parallel-size=4",)},
        {"extra_args": ("--block-size", "128")},
        {"extra_args": ("--block-size", "48", "--block-size=64")},
        {"extra_args": ("--block-size", "many")},
        {"extra_args": ("--chat-template", "", "48")},
        {"kv_cache_dtype": "fp8_ds_mla"},
        {"resp_threads": 256},
    ],
    ids=str,
)
def test_what_is_close_to_a_refusal_is_none(change: dict[str, Any]) -> None:
    raise_if_refused(pod(Prefill, **{"model": "m", "mla": True, **change}), {})


def test_a_decode_pod_needs_two_ports_too() -> None:
    with pytest.raises(SettingsError, match=r"^--nixl-port: expected another port"):
        raise_if_refused(Decode(model="m", port=7, nixl_port=7), {})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sharded": False}, r"remote_url: expected no \{rank\} without pcp_shard_store"),
    ({"remote_url": "resp://v-{worker}:1"}, r"remote_url: .*no placeholder but \{rank\}.*worker"),
    ({"remote_url": "resp://v-{rank:1"}, r"remote_url: .*unpaired brace"),
    ({"remote_url": "redis://v-{rank}:1"}, r"remote_url: expected resp://HOST:PORT"),
    ({"remote_url": "resp://v-{rank}"}, r"remote_url: expected resp://HOST:PORT"),
    ({"hash_algorithm": "builtin"}, r"pre_caching_hash_algorithm: .*found builtin"),
    ({"extra": {"use_layerwise": True}}, r"use_layerwise: expected false"),
    ({"extra": {"enable_blending": True}}, r"enable_blending: expected false"),
    ({"extra": {"enable_scheduler_bypass_lookup": True}}, r"enable_scheduler_bypass_lookup: "),
    ({"extra": {"enable_p2p": True}}, r"enable_p2p: expected false"),
    ({"extra": {"maru_path": "x"}}, r"maru_path: expected none"),
    ({"blocking_timeout_s": 60}, r"pcp_shard_timeout_secs: expected more than 61, .*found 60"),
    (
        {"extra": {"extra_config.pcp_shard_timeout_secs": 11}},
        r"pcp_shard_timeout_secs: expected more than 11",
    ),
    ({"extra": {"save_unfull_chunk": "yes"}}, r"save_unfull_chunk: expected false"),
    ({"extra": {"extra_config.save_chunk_meta": True}}, r"save_chunk_meta: expected false"),
    ({"extra": {"extra_config.save_only_first_rank": False}}, r"save_only_first_rank: "),
    (
        {"extra": {"extra_config.remote_enable_mla_worker_id_as0": False}},
        r"remote_enable_mla_worker_id_as0: ",
    ),
    ({"extra": {"external_lookup_client": "x://y"}}, r"external_lookup_client: expected none"),
    ({"extra": {"remote_serde": "cachegen"}}, r"remote_serde: expected naive"),
    ({"extra": {"lookup_server_worker_ids": [0]}}, r"lookup_server_worker_ids: expected all 8"),
    ({"pp": 2}, r"--pp: expected 1 .*found 2"),
    ({"dcp": 2}, r"--dcp: expected 1 .*found 2"),
    ({"mla": False}, r"model: .*found --no-mla"),
    ({"mla": None}, r"model: .*config.json is not here.*add --mla"),
    ({"l1_gib": 9.0}, r"--l1-gib: expected at least 9.1: 1.21 GB on each of 8 ranks"),
    ({"chunk_size": 100}, r"chunk_size: expected a multiple of 64"),
    ({"longest_prompt": 300_000}, r"--longest-prompt: expected at most"),
    ({"load_failure_policy": "recompute"}, r"--load-failure-policy: expected fail"),
    ({"extra_args": ("--pipeline_parallel_size=2",)}, r"--pipeline_parallel_size=2: "),
    ({"extra_args": ("-cc.mode=3",)}, r"-cc.mode=3: "),
    ({"port": 5600}, r"--nixl-port: expected another port than --port \(5600\), found 5600; "),
    (
        {"port": 5603, "extra_args": ("-dp", "4")},
        r"--nixl-port: expected another port than --port \(5603\), found 5600 to 5603; ",
    ),
    ({"nixl": False, "nixl_host": "x"}, r"--nixl-host: expected none with --no-nixl, found x; "),
    (
        {"extra_args": ("--block-size", "48")},
        r"--block-size: expected a divisor of .*256.*found 48; ",
    ),
    ({"extra_args": ("--block_s=512",)}, r"--block-size: expected a divisor of .*256.*found 512; "),
    ({"cpu": True}, r"--pcp: expected 1 with --cpu"),
]


@pytest.mark.parametrize(("change", "line"), REFUSED, ids=[line[:40] for _, line in REFUSED])
def test_what_cannot_work_is_refused_in_one_line(change: dict[str, Any], line: str) -> None:
    chosen = pod(Prefill, **{"model": "m", "mla": True, **change})
    with pytest.raises(SettingsError, match=line) as refused:
        raise_if_refused(chosen, {})
    assert all("; " in text for text in str(refused.value).splitlines()), "no next step"


def test_each_refusal_stands_alone() -> None:
    """What one case changes is all that is wrong: no check fires for another's fault."""
    for change, line in REFUSED:
        if change == {"cpu": True}:
            continue
        with pytest.raises(SettingsError) as refused:
            raise_if_refused(pod(Prefill, **{"model": "m", "mla": True, **change}), {})
        assert str(refused.value).count("\n") == 0, f"{line}: {refused.value}"


def test_the_smallest_l1_that_works_works() -> None:
    """200,000 tokens are 781 chunks, 98 on the most loaded rank."""
    raise_if_refused(Prefill(model="m", mla=True, l1_gib=9.1), {})


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("LMCACHE_CONFIG_FILE", "x.yaml", "LMCACHE_CONFIG_FILE: expected unset"),
        ("LMCACHE_CHUNK_SIZE", "512", "LMCACHE_CHUNK_SIZE: expected unset, or 256, found 512"),
        ("LMCACHE_EXTERNAL_LOOKUP_CLIENT", "x", "external_lookup_client: .*unset LMCACHE_EXT"),
    ],
)
def test_what_the_engine_would_inherit_counts(variable: str, value: str, line: str) -> None:
    with pytest.raises(SettingsError, match=line):
        raise_if_refused(Prefill(model="m", mla=True), {variable: value})


def test_a_models_folder_says_what_attention_it_has(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"kv_lora_rank": 512}))
    raise_if_refused(Prefill(model=str(tmp_path)), {})
    (tmp_path / "config.json").write_text(json.dumps({"num_key_value_heads": 8}))
    with pytest.raises(SettingsError, match="no kv_lora_rank in"):
        raise_if_refused(Prefill(model=str(tmp_path)), {})
    for broken in ("[1]", "7", "{"):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(SettingsError, match=r"a model's configuration, .*; name the"):
            raise_if_refused(Prefill(model=str(tmp_path)), {})


def test_without_latent_attention_the_first_advice_is_all_that_is_needed() -> None:
    """The address of the sharded store has a {rank} that nothing else fills in."""
    said = "; add --no-sharded and --remote-url resp://HOST:PORT, one server for all ranks$"
    with pytest.raises(SettingsError, match=said):
        raise_if_refused(Prefill(model="m", mla=False), {})
    raise_if_refused(
        Prefill(model="m", mla=False, sharded=False, remote_url="resp://HOST:6379"), {}
    )
    with pytest.raises(SettingsError, match=r"; add --no-sharded$"):
        raise_if_refused(Prefill(model="m", mla=False, remote_url=""), {})


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"pcp": 0}, "--pcp: expected at least 1, found 0"),
        ({"port": 70000}, "--port: expected at most 65535, found 70000"),
        ({"l1_gib": 0}, "--l1-gib: expected more than 0, found 0"),
        ({"l1_gib": float("inf")}, "--l1-gib: expected a finite number, found inf"),
        ({"l1_gib": 1e300}, "--l1-gib: expected at most 100000, found 1e+300"),
        ({"resp_threads": 257}, "--resp-threads: expected at most 256, found 257"),
        ({"blocking_timeout_s": 0}, "--blocking-timeout: expected at least 1, found 0"),
        ({"nixl_backend": "ucx"}, "--nixl-backend: expected 'LIBFABRIC' or 'UCX', found 'ucx'"),
        ({"host": ""}, "--host: expected an address without white space, found ''"),
        ({"host": "a b"}, "--host: expected an address without white space, found 'a b'"),
        ({"nixl_host": "a\n"}, "--nixl-host: expected an address without white space, found 'a"),
        ({"kv_cache_dtype": "fp9"}, "--kv-cache-dtype: expected 'auto', 'float16', 'bfloat16', "),
        ({"model": ""}, "MODEL: expected a name, found ''"),
        ({"pcp": "x"}, "--pcp: expected a valid integer"),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_one_line_that_names_the_option(
    value: dict[str, Any], line: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        pod(Prefill, **{"model": "m", **value})
    assert str(refused.value).startswith(line)
    assert str(refused.value).endswith("; see headrace serve prefill --help")
    assert str(refused.value).count("\n") == 0


def test_assignments() -> None:
    assert parse_assignments(["a=1", "b=x", "c=[0, 1]", "extra_config.d=True"]) == {
        "a": 1, "b": "x", "c": [0, 1], "extra_config.d": True,
    }  # fmt: skip
    with pytest.raises(SettingsError, match="expected KEY=VALUE"):
        parse_assignments(["a"])
    with pytest.raises(SettingsError, match="found two"):
        parse_assignments(["a=1", "a=2"])
    for key in ("x;touch pwned;y", "A B", "a\n", "a.", ".a", "a..b", "a-b", "ä", "$x"):
        with pytest.raises(
            SettingsError, match="expected a KEY of letters, digits, _ and"
        ) as refused:
            parse_assignments([f"{key}=hunter2"])
        assert "hunter2" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"write --set extra_config\.NAME"):
        lmcache_settings(Prefill(model="m", extra={"extra_config": {}}))


def _option(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]
