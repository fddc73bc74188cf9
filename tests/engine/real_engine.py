"""vLLM on the CPU with two ranks that hold the same latent KV, and LMCache between them.

    with RealEngine(model, log, settings) as engine:
        (answer,) = engine.ask(prompt)

The engine runs in the environment that `make engine` makes, in a process group of its own. Every
wait has a deadline; what passes it is told to print the stacks of all its threads, and is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.engine.settings import arguments, engine_python, environment
from tests.suites.sites import ROOT

# Some 25 on two idle cores; the first one compiles all that it imports.
START_SECONDS = 240.0
ANSWER_SECONDS = 90.0
END_SECONDS = 20.0

# What no sound run logs: wrong counts, something given up, a load that fell short.
FAULTS = re.compile(
    r"Traceback|\b(?:ERROR|CRITICAL)\b|"
    r"WARNING.*(?:Double (?:unpin|free)|is negative|time(?:d )?out|still waiting|failed|degraded)"
)

RECOMPUTED = re.compile(r"Recovered from KV load failure: .* rescheduled \((\d+) tokens affected")


@dataclass(frozen=True)
class Answer:
    """What the engine said.

    Attributes:
        tokens: the answer's, in order.
        cached: tokens of the prompt whose KV was loaded and not computed.
        reason: "length" as a rule, "error" for a request that the engine gave up.
        seconds: from the question to the last token.
    """

    tokens: tuple[int, ...]
    cached: int
    reason: str
    seconds: float


class RealEngine:
    """One engine, from entering the context to leaving it.

    Attributes:
        start_seconds: from the first process to an engine that takes requests.
        preemptions: requests that were preempted so far.
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        cache: Mapping[str, object],
        env: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        """Take what the engine is started with.

        Args:
            cache: LMCache's settings, as `cache_settings` returns them.
            env: replaces and adds to the engine's environment.
            more: replaces and adds to vLLM's engine arguments.
        """
        self._log = log
        self._env = {**environment(cache), **(env or {})}
        self._arguments = {**arguments(model), **more}
        self._child: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.start_seconds = 0.0
        self.preemptions = 0

    def __enter__(self) -> Self:
        started = time.monotonic()
        with self._log.open("ab") as stream:
            self._child = subprocess.Popen(
                [engine_python(), "-X", "faulthandler", "-m", "tests.engine.engine_child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, env=self._env,
                cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        try:
            self._exchange(self._arguments, START_SECONDS)
        except BaseException:
            self._kill()
            raise
        self.start_seconds = time.monotonic() - started
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(END_SECONDS)
        self._kill()

    def ask(
        self, *prompts: Iterable[int], count: int = 5, seconds: float = ANSWER_SECONDS
    ) -> tuple[Answer, ...]:
        """Ask all prompts at once, in token ids, and return their answers of `count` tokens.

        Raises:
            AssertionError: no answer within `seconds`, or the engine ended.
        """
        found = self._exchange(
            {"do": "ask", "prompts": [list(prompt) for prompt in prompts], "count": count}, seconds
        )
        self.preemptions = found["preemptions"]
        return tuple(
            Answer(**{**each, "tokens": tuple(each["tokens"])}) for each in found["answers"]
        )

    def abort(
        self, prompt: Iterable[int], after_tokens: int = 0, after_seconds: float = 0.0
    ) -> int:
        """Ask and abort; return how many tokens were said before.

        Raises:
            AssertionError: the request had ended before; see `ask` for others.
        """
        found = self._exchange(
            {
                "do": "abort", "prompt": list(prompt), "count": 200,
                "after_tokens": after_tokens, "after_seconds": after_seconds,
            },
            ANSWER_SECONDS,
        )  # fmt: skip
        assert found["aborted"], "the request ended before it was aborted"
        return int(found["said"])

    def workers(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of `WorkerView` on each rank, and return what each says."""
        message = {"do": "workers", "method": method, "arguments": arguments}
        ranks: list[Any] = self._exchange(message, ANSWER_SECONDS)["ranks"]
        return ranks

    def recomputed(self) -> int:
        """Return how many tokens vLLM computed so far after it had been told to expect a load."""
        return sum(map(int, RECOMPUTED.findall(self.log())))

    def faults(self) -> list[str]:
        """Return the lines of the log so far that no sound run has."""
        return [line for line in self.log().splitlines() if FAULTS.search(line)]

    def log(self) -> str:
        """Return all that the engine's processes have printed so far."""
        return self._log.read_text(errors="replace")

    def _exchange(self, message: object, seconds: float) -> dict[str, Any]:
        assert self._child is not None, "the engine was not started"
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        line = self._line(time.monotonic() + seconds)
        if line is None:
            ended = self._child.poll()
            self._kill()
            what = f"no answer within {seconds:.0f} s" if ended is None else f"it ended ({ended})"
            raise AssertionError(f"engine: {what}; its log, {self._log}, ends:\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _line(self, until: float) -> bytes | None:
        assert self._child is not None
        assert self._child.stdout is not None
        stream = self._child.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            part = os.read(stream, 1 << 16) if ready else b""
            if not part:
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _kill(self) -> None:
        """End all of the engine's processes; those that still run print their stacks before."""
        if self._child is None:
            return
        group = self._child.pid
        for how, wait in ((signal.SIGABRT, 2.0), (signal.SIGKILL, 0.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, how)
                time.sleep(wait)
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._child = None

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-60:])
