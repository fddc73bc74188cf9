"""Numbers among LMCache's settings: what is none is one line, and no check computes with it."""

from __future__ import annotations

import pytest

from headrace.engine.settings import Prefill, pod
from headrace.engine.settings_lmcache import lmcache_environment, parse_assignments
from headrace.engine.settings_refusals import raise_if_refused
from headrace.errors import SettingsError

BAD = (
    "chunk_size=abc", "chunk_size=0", "chunk_size=1.5", "chunk_size=256.0", "chunk_size=true",
    "chunk_size=[]", "max_local_cpu_size=abc", "max_local_cpu_size=null", "max_local_cpu_size=NaN",
    "max_local_cpu_size=Infinity", "max_local_cpu_size=1" + "0" * 400,
    "max_local_cpu_size=1" + "0" * 5000, "blocking_timeout_secs=x", "blocking_timeout_secs=2.5",
    "lookup_timeout_ms=-1", "extra_config.pcp_shard_timeout_secs=abc",
    "extra_config.pcp_shard_timeout_secs=null", "extra_config.pcp_shard_timeout_secs=nan",
    "extra_config.pcp_shard_timeout_secs=NaN", "extra_config.resp_num_threads=many",
    "extra_config.resp_num_threads=257", "max_local_cpu_size=1e300",
    "extra_config.lookup_backoff_time=0", 'lookup_server_worker_ids=["a",1]',
    "lookup_server_worker_ids=[[0]]", "lookup_server_worker_ids=null",
    "lookup_server_worker_ids={}", "lookup_server_worker_ids=0,x",
)  # fmt: skip


@pytest.mark.parametrize("assignment", BAD, ids=[text[:60] for text in BAD])
def test_what_is_no_number_is_refused_in_one_line(assignment: str) -> None:
    chosen = Prefill(model="m", mla=True, extra=parse_assignments([assignment]))
    name = assignment.partition("=")[0]
    with pytest.raises(SettingsError, match=rf"^{name}: expected .*; leave --set {name} out$"):
        raise_if_refused(chosen, {})


def test_no_other_check_runs_beside_it() -> None:
    chosen = Prefill(model="m", mla=True, pp=2, extra={"chunk_size": "abc"})
    with pytest.raises(SettingsError) as refused:
        raise_if_refused(chosen, {})
    assert str(refused.value).count("\n") == 0


def test_numbers_of_the_environment_are_text() -> None:
    chosen = Prefill(model="m", mla=True)
    raise_if_refused(chosen, {"LMCACHE_PIN_TIMEOUT_SEC": "60"})
    with pytest.raises(SettingsError, match="found 'soon'; unset LMCACHE_PIN_TIMEOUT_SEC"):
        raise_if_refused(chosen, {"LMCACHE_PIN_TIMEOUT_SEC": "soon"})


@pytest.mark.parametrize("ranks", ["5", "[0, 1]", "0,1"])
def test_ranks_that_are_not_all_are_refused(ranks: str) -> None:
    extra = parse_assignments([f"lookup_server_worker_ids={ranks}"])
    with pytest.raises(SettingsError, match=r"^lookup_server_worker_ids: expected all 8"):
        raise_if_refused(Prefill(model="m", mla=True, extra=extra), {})


def test_a_list_reaches_lmcache_as_it_reads_one() -> None:
    """It splits at commas, and takes "[0" for no number and the list for none."""
    extra = {"lookup_server_worker_ids": list(range(8))}
    raise_if_refused(Prefill(model="m", mla=True, extra=extra), {})
    environment = lmcache_environment(extra)
    assert environment == {"LMCACHE_LOOKUP_SERVER_WORKER_IDS": "0,1,2,3,4,5,6,7"}


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_memory_is_finite(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^--l1-gib: "):
        pod(Prefill, model="m", l1_gib=value)
