"""The pool's end of a process that has imported LMCache and forks into ranks."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import SuiteVoidError

# Two cores, and other work on them.
IMPORT_SECONDS = 180.0
_END_SECONDS = 10.0


class Template:
    """One importing process, from entering the context to leaving it; its ranks end with it.

    Args:
        site: the folder with the lmcache package; None for whatever PYTHONPATH has.
        log: gets what the import prints.
        module: what is run; it calls `headrace.suites.ranks.process.serve`.
        env: changes to the environment.
    """

    def __init__(
        self,
        log: Path,
        site: Path | None = None,
        module: str = "headrace.suites.ranks.main",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._command = [sys.executable, "-m", module]
        self._env = {**os.environ, **(env or {})}
        if site is not None:
            root = Path(__file__).resolve().parents[3]
            self._env["PYTHONPATH"] = os.pathsep.join([str(site), str(root)])
        self._wire, self._far = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False

    def start(self) -> None:
        """Begin the import; `fork` waits for its end."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, str(self._far.fileno())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env,
                pass_fds=[self._far.fileno()],
            )  # fmt: skip
        self._far.close()

    def fork(self, log: Path) -> socket.socket:
        """Return the socket of a new rank, which writes to `log`.

        Raises:
            SuiteVoidError: the import failed or does not end.
        """
        self._wait_for_import()
        near, far = socket.socketpair()
        with far:
            socket.send_fds(self._wire, [str(log).encode()], [far.fileno()])
        return near

    def _wait_for_import(self) -> None:
        if self._ready:
            return
        ready, _, _ = select.select([self._wire], [], [], IMPORT_SECONDS)
        if not ready or self._wire.recv(64) != b"ready\n":
            raise SuiteVoidError(
                f"expected {' '.join(self._command)} to import LMCache, it "
                f"{'ended' if ready else 'hangs'}; see {self._log}:\n"
                + self._log.read_text(errors="replace")[-2000:]
            )
        self._ready = True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wire.close()
        if self._process is None:
            return
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
