"""A vLLM engine that answers requests, one JSON value a line on its standard streams.

The first line is the engine's arguments. Each that follows is one request:

    {"do": "ask", "prompts": [[1, 9, …], …], "count": 5}       all at once
    {"do": "abort", "prompt": [1, 9, …], "count": 64, "after_tokens": 3, "after_seconds": 0}
    {"do": "workers", "method": "cache_view", "arguments": []}  on each rank; see `WorkerView`

Everything that vLLM prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from vllm import EngineArgs, SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.reader import Counter


def main() -> None:
    """Serve until the input ends."""
    # vLLM's own processes inherit the standard output, and log to it.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        serve(lambda value: print(json.dumps(value), file=answers, flush=True))


def serve(say: Callable[[dict[str, Any]], None]) -> None:
    """Start the engine and answer each line with one value."""
    started = time.monotonic()
    engine = LLMEngine.from_engine_args(EngineArgs(**json.loads(sys.stdin.readline())))
    operations: dict[str, Callable[..., dict[str, Any]]] = {
        "ask": ask,
        "abort": abort,
        "workers": workers,
    }
    say({"seconds": time.monotonic() - started})
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        say(operations[request.pop("do")](engine, number, **request))


def ask(engine: Any, number: int, prompts: list[list[int]], count: int) -> dict[str, Any]:
    """Answer all prompts, started together, each with `count` tokens."""
    started = time.monotonic()
    for index, prompt in enumerate(prompts):
        engine.add_request(f"{number}-{index}", {"prompt_token_ids": prompt}, greedy(count))
    answers: dict[int, dict[str, Any]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                index = int(output.request_id.split("-")[1])
                answers[index] = answer(output, time.monotonic() - started)
    return {
        "answers": [answers[index] for index in range(len(prompts))],
        "preemptions": preemptions(engine),
    }


def abort(
    engine: Any, number: int, prompt: list[int], count: int, after_tokens: int, after_seconds: float
) -> dict[str, Any]:
    """Start a prompt and abort it once it has said `after_tokens` tokens and time has passed."""
    name = engine.add_request(f"{number}-0", {"prompt_token_ids": prompt}, greedy(count))
    said = 0
    while said < after_tokens and engine.has_unfinished_requests():
        for output in engine.step():
            said = len(output.outputs[0].token_ids)
    time.sleep(after_seconds)
    unfinished = engine.has_unfinished_requests()
    engine.abort_request([name], internal=True)
    return {"said": said, "aborted": bool(unfinished)}


def workers(engine: Any, number: int, method: str, arguments: list[Any]) -> dict[str, Any]:
    """Call a method of `WorkerView` on each worker; return what they say by their ranks."""
    found = engine.engine_core.collective_rpc(method, timeout=30.0, args=tuple(arguments))
    return {"ranks": found}


def answer(output: Any, seconds: float) -> dict[str, Any]:
    """Return what is proved about one finished request."""
    completion = output.outputs[0]
    return {
        "tokens": list(completion.token_ids),
        "cached": output.num_cached_tokens or 0,
        "reason": completion.finish_reason,
        "seconds": seconds,
    }


def preemptions(engine: Any) -> int:
    """Return how often any request was preempted so far."""
    return sum(
        metric.value
        for metric in engine.get_metrics()
        if isinstance(metric, Counter) and metric.name == "vllm:num_preemptions"
    )


def greedy(count: int) -> SamplingParams:
    """Return parameters for exactly `count` tokens, the most probable ones."""
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


# vLLM's processes are spawned, and import this module once more.
if __name__ == "__main__":
    main()
