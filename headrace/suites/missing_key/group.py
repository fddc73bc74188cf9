"""Runs one group of cases in child processes; a child that hangs is replaced for the cases left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from headrace.errors import MachineError
from headrace.suites.line_process import LineProcess
from headrace.suites.missing_key.case import Case, Surroundings
from headrace.suites.results import CaseResult, Verdict

SUITE = "missing-key"
CHILD = "headrace.suites.missing_key.child"

NO_LMCACHE = (
    "lmcache: expected one to test, found none in this Python; run it in the image: "
    "docker run --rm --entrypoint headrace IMAGE missing-key, "
    "or name a build: PYTHONPATH=build/site/patched headrace missing-key"
)
_IMPORT_SECONDS = 240.0
# A child dumps its stacks and ends at a case's deadline; this much later it is killed.
_GRACE_SECONDS = 10.0


class Group:
    """One group's cases. `log` takes what the children write, stack dumps included.

    Once `stop` is set no further case is begun.

    Attributes:
        about: which LMCache the children found, once one has started.
    """

    def __init__(
        self,
        name: str,
        around: Surroundings,
        log: Path,
        on_result: Callable[[CaseResult], None],
        stop: threading.Event,
    ) -> None:
        self._name = name
        self._around = around
        self._log = log
        self._on_result = on_result
        self._stop = stop
        self._child: LineProcess | None = None
        self._why_void = ""
        self.about: Mapping[str, str] = {}

    def run(self, cases: Sequence[Case], why_no_private: str) -> list[CaseResult]:
        """Run the cases one after the other and return a result for each that ran, in order.

        Raises:
            MachineError: there is no LMCache at all, so no case can run.
        """
        results = []
        try:
            for case in cases:
                if self._stop.is_set():
                    break
                if case.needs and case.needs not in self._around.private:
                    result = self._result(case, "void", why_no_private, 0.0)
                else:
                    result = self._run(case)
                self._on_result(result)
                results.append(result)
        finally:
            if self._child is not None:
                self._child.end()
        return results

    def _run(self, case: Case) -> CaseResult:
        if self._child is None and not self._why_void:
            self._child = self._begin()
        if self._child is None:
            return self._result(case, "void", self._why_void, 0.0)
        began = time.monotonic()
        self._child.send(case.name)
        deadline = case.deadline(self._around.patience)
        answer = self._child.receive(deadline + _GRACE_SECONDS)
        if answer is not None:
            verdict = cast(Verdict, answer["verdict"])
            return self._result(case, verdict, answer["seen"], float(answer["ms"]))
        ms = (time.monotonic() - began) * 1000
        status = self._child.end()
        self._child = None
        what = (
            f"did not end within {deadline:.0f} s"
            if ms >= deadline * 1000
            else f"its process died (status {status})"
        )
        return self._result(case, "red", f"{what}; stacks in {self._log}", ms)

    def _begin(self) -> LineProcess | None:
        """Start a child; None, and a reason for all cases left, if it cannot run any."""
        child = LineProcess(CHILD, _environment(), self._log)
        child.send({"group": self._name, "surroundings": asdict(self._around)})
        hello = child.receive(_IMPORT_SECONDS)
        if hello is not None and not {"missing", "absent"} & hello.keys():
            self.about = hello
            return child
        child.end()
        if hello is not None and "absent" in hello:
            raise MachineError(NO_LMCACHE)
        if hello is None:
            self._why_void = f"the process that imports LMCache ended or hangs; see {self._log}"
        else:
            self._why_void = f"cannot import LMCache's RESP client: {hello['missing']}"
        return None

    def _result(self, case: Case, verdict: Verdict, seen: str, ms: float) -> CaseResult:
        return CaseResult(SUITE, case.name, case.expected, seen, verdict, round(ms, 3))


def _environment() -> dict[str, str]:
    """Return the children's environment."""
    # Credentials go through the pipe: as variables LMCache would use them for every server.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LMCACHE_RESP_USERNAME", "LMCACHE_RESP_PASSWORD")
    }
    # What LMCache logs below this level includes configurations, and those hold the passwords.
    return {**inherited, "LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}
