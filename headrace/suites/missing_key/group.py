"""Runs one group of cases in child processes; a child that hangs is replaced for the cases left."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from headrace.suites.missing_key.case import Case, Surroundings
from headrace.suites.results import CaseResult, Verdict

SUITE = "missing-key"
_IMPORT_SECONDS = 240.0
# A child dumps its stacks and ends at a case's deadline; this much later it is killed.
_GRACE_SECONDS = 10.0


class Group:
    """One group's cases. `log` takes what the children write, stack dumps included."""

    def __init__(
        self, name: str, around: Surroundings, log: Path, on_result: Callable[[CaseResult], None]
    ) -> None:
        self._name = name
        self._around = around
        self._log = log
        self._on_result = on_result
        self._child: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.about: Mapping[str, str] = {}

    def run(self, cases: Sequence[Case], why_no_private: str) -> list[CaseResult]:
        """Run the cases one after the other and return a result for each, in order."""
        results = []
        try:
            for case in cases:
                if case.needs and case.needs not in self._around.private:
                    result = self._result(case, "void", why_no_private, 0.0)
                else:
                    result = self._run(case)
                self._on_result(result)
                results.append(result)
        finally:
            self._end()
        return results

    def _run(self, case: Case) -> CaseResult:
        if self._child is None and (problem := self._begin()):
            return self._result(case, "void", problem, 0.0)
        began = time.monotonic()
        self._send(case.name)
        deadline = case.deadline(self._around.patience)
        answer = self._receive(deadline + _GRACE_SECONDS)
        if answer is None:
            ms = (time.monotonic() - began) * 1000
            status = self._end()
            what = (
                f"did not end within {deadline:.0f} s"
                if ms >= deadline * 1000
                else f"its process died (status {status})"
            )
            return self._result(case, "red", f"{what}; stacks in {self._log}", ms)
        return self._result(
            case, cast(Verdict, answer["verdict"]), answer["seen"], float(answer["ms"])
        )

    def _begin(self) -> str:
        """Start a child; return "" or why it cannot run cases."""
        # Credentials go through the pipe: as variables LMCache would use them for every server.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("LMCACHE_RESP_USERNAME", "LMCACHE_RESP_PASSWORD")
        }
        # Configurations that LMCache logs below this level hold the passwords.
        quiet = {"LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "headrace.suites.missing_key.child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**inherited, **quiet},
            )  # fmt: skip
        self._unread = b""
        self._send({"group": self._name, "surroundings": asdict(self._around)})
        hello = self._receive(_IMPORT_SECONDS)
        if hello is None or "missing" in hello:
            self._end()
            return f"cannot import LMCache's RESP client: {(hello or {}).get('missing', self._log)}"
        self.about = hello
        return ""

    def _send(self, message: Any) -> None:
        if self._child is None or self._child.stdin is None:
            raise RuntimeError("no child to send to")
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            # It is gone: the read that follows sees the end of the stream and reports it.
            return

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """Return the next message; None if the child ended or is silent for `seconds`."""
        if self._child is None or self._child.stdout is None:
            raise RuntimeError("no child to receive from")
        stream = self._child.stdout.fileno()
        until = time.monotonic() + seconds
        while b"\n" not in self._unread:
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(stream, 65536) if ready else b""
            if not chunk:
                return None
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))

    def _end(self) -> int:
        """End the child, if there is one, and return its status."""
        if self._child is None:
            return 0
        child, self._child = self._child, None
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()
        try:
            return child.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    def _result(self, case: Case, verdict: Verdict, seen: str, ms: float) -> CaseResult:
        return CaseResult(SUITE, case.name, case.expected, seen, verdict, round(ms, 3))
