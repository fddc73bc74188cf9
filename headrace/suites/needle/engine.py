"""The private engine's processes: how they are started, with which environment and ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from headrace.console import disk_error, say
from headrace.errors import EndpointError, MachineError, ShardError
from headrace.suites.needle.client import Endpoint
from headrace.suites.valkey_server import HOST, ValkeyServer

START_SECONDS = 240.0
_END_SECONDS = 20.0
_LOG_LINES = 15


class PrivateEngine:
    """One engine, started again and again on the same port with the same servers.

    Attributes:
        url: of its HTTP server.
        valkey: the servers' addresses, with {rank}.
        log: of all its processes.
        words: what follows `headrace serve prefill`.
        servers: in the order of the ranks.
    """

    def __init__(
        self,
        folder: Path,
        ranks: int,
        valkey: str,
        words: Sequence[str],
        servers: Sequence[ValkeyServer] = (),
    ) -> None:
        self._ranks = ranks
        self.valkey = valkey
        self.log = folder / "engine.log"
        self._port = free_port()
        self.url = f"http://{HOST}:{self._port}"
        self.words = words
        self.servers = servers
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, endpoint: Endpoint) -> None:
        """Start the engine and return once it answers.

        Raises:
            EndpointError: it ends or stays silent; its log is quoted.
            MachineError: its log cannot be written.
        """
        with self._log() as log:
            process = self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=environment(self._ranks), start_new_session=True,
            )  # fmt: skip
        if not endpoint.wait(START_SECONDS, lambda: process.poll() is None):
            status = process.poll()
            self.stop()
            for line in self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]:
                say(f"  | {line}")
            what = (
                f"it stayed silent for {START_SECONDS:.0f} s"
                if status is None
                else f"it ended with status {status}"
            )
            raise EndpointError(
                f"{self.url}: expected the private engine to answer, {what}; see {self.log}"
            )

    def command(self) -> list[str]:
        """Return what `start` runs."""
        return [
            sys.executable, "-m", "headrace.cli", "serve", "prefill", "--host", HOST,
            "--port", str(self._port), *self.words,
        ]  # fmt: skip

    def restart(self, endpoint: Endpoint) -> None:
        """End the engine, and start it with empty memory."""
        self.stop()
        self.start(endpoint)

    @contextmanager
    def without(self, rank: int) -> Iterator[None]:
        """Stop one rank's server for the block; it comes back empty, on the same port.

        Raises:
            ShardError: it does not come back.
        """
        self.servers[rank].stop()
        try:
            yield
        finally:
            try:
                self.servers[rank].start()
            except MachineError as failure:
                raise ShardError(f"server of rank {rank}: {failure}") from failure

    def stop(self) -> None:
        """End all of the engine's processes; no error if none runs."""
        if self._process is None:
            return
        for number, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, _END_SECONDS)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._process = None

    def _log(self) -> IO[bytes]:
        try:
            return self.log.open("ab")
        except OSError as failure:
            raise disk_error(failure, self.log) from failure


def programs() -> str:
    """Return the PATH in which the engine is looked for: what lies beside this Python first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def environment(ranks: int) -> dict[str, str]:
    """Return the engine's environment: ours, without LMCache's, with cores of its own a rank."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // ranks
    shares = [",".join(map(str, cores[at : at + each])) for at in range(0, each * ranks, each or 1)]
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("LMCACHE_")}
    return {
        # vLLM refuses two ranks on one memory node unless told which cores are whose.
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(shares) if each else "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "LMCACHE_TRACK_USAGE": "false",
        **inherited,
        # Ranks that look for an address of their own find the machine's, and listen there.
        "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": HOST, "PATH": programs(),
    }  # fmt: skip


def free_ports(count: int) -> int:
    """Return the first of `count` free ports that differ in their last digit only.

    Raises:
        MachineError: there are none, or `count` is above 10.
    """
    for base in range(20010, 60000, 10) if count <= 10 else ():
        with ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    stack.enter_context(socket.socket()).bind((HOST, port))
            except OSError:
                continue
            return base
    raise MachineError(f"expected {count} free ports in a row, at most 10; lower --ranks")


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
