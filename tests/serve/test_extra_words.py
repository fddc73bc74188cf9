"""Words that are handed to vLLM as they are: none may change what was checked."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from headrace.engine.settings import Decode, Pod, Prefill
from headrace.engine.settings_command import Launch, launch, own_option
from headrace.engine.settings_refusals import raise_if_refused
from headrace.errors import SettingsError


@pytest.mark.parametrize(
    ("words", "own"),
    [
        # argparse takes the beginning of an option for the option, and the later one wins.
        (("--kv-transfer-conf", "{}"), "--kv-transfer-config"),
        (("--tensor-parallel", "4"), "--tensor-parallel-size"),
        (("--tensor_par=4",), "--tensor-parallel-size"),
        (("--no-enable-exp",), "--no-enable-expert-parallel"),
        (("--no-enable-prompt-tokens-details",), "--no-enable-prompt-tokens-details"),
        (("--model", "other"), "--model"),
        (("--compilation-conf.mode=3",), "--compilation-config"),
        (("-t", "4"), "-tp"),
        (("--seed", "0", "--", "--port", "1"), "--port"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("pod", [Prefill(model="m", mla=True), Decode(model="m")])
def test_no_word_sets_what_headrace_sets(pod: Pod, words: tuple[str, ...], own: str) -> None:
    chosen = pod.model_copy(update={"extra_args": words})
    with pytest.raises(SettingsError, match=rf"vLLM's alone after --, found headrace's own {own}"):
        raise_if_refused(chosen, {})


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("--port", "give --port before --"), ("--tensor-par=4", "give --tp before --"),
        ("--model", "give MODEL before --"), ("-sc", "give --mtp-tokens before --"),
        ("--no-enable-expert-parallel", "give --no-expert-parallel before --"),
        ("-pcp", "leave it out"), ("--kv-transfer-config", "leave it out"),
    ],
)  # fmt: skip
def test_the_advice_is_an_option_that_there_is(word: str, instead: str) -> None:
    with pytest.raises(SettingsError, match=rf"; {instead}$"):
        raise_if_refused(Decode(model="m", extra_args=(word,)), {})


@pytest.mark.parametrize(
    "word", ["--gpu-memory-utilization", "--kv-cache-dtype-skip-layers", "--dtype", "-", "0.9", ""]
)
def test_other_words_pass(word: str) -> None:
    assert own_option(word) is None


def test_a_second_model_is_refused() -> None:
    chosen = Prefill(model="/m", mla=True, extra_args=("second", "third"))
    with pytest.raises(SettingsError) as refused:
        raise_if_refused(chosen, {})
    assert str(refused.value) == (
        "MODEL: expected one word, found 'second' behind it; "
        "write headrace serve prefill MODEL [OPTIONS] -- [OPTIONS OF VLLM]"
    )


@pytest.mark.parametrize(
    "layout", [{"pcp": 1, "tp": 8}, {"pcp": 1, "nixl": False}, {"pcp": 8, "dcp": 8}, {}]
)
def test_no_gpu_pod_that_loads_has_graphs(layout: dict[str, Any]) -> None:
    """A step in a full graph would pass over LMCache's load."""
    command = launch(Prefill(model="m", **layout), {}).command
    value = command[command.index("--compilation-config") + 1]
    assert json.loads(value) == {"cudagraph_mode": "NONE"}


def test_a_cpu_has_no_graphs_to_switch_off() -> None:
    chosen = Prefill(model="m", cpu=True, pcp=1, nixl=False)
    assert "--compilation-config" not in launch(chosen, {}).command


def test_whatever_is_printed_a_shell_takes_as_words() -> None:
    words, environment = ("vllm", "a b", "-x;y", "é\n$(z)"), {"A;B C": "$D", "E": "'"}
    printed = Launch(words, environment).shell()
    taken = shlex.split(printed.replace(" \\\n", " "))
    assert taken == ["env", *(f"{name}={text}" for name, text in environment.items()), *words]
