"""A deployment of one's own for the suite: the needle model on the CPU, and a Valkey for each rank.

The ranks share a prompt's latent KV by tensor parallelism, as they would by prefill context
parallelism, which vLLM does not have on the CPU. Everything is on loopback and ends with the block.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from headrace.console import say
from headrace.errors import EndpointError, MachineError
from headrace.suites.needle.client import Endpoint
from headrace.suites.needle.options import Options
from headrace.suites.needle.plan import plan
from headrace.suites.needle.run import Outcome, run_suite
from headrace.suites.results import CaseResult
from headrace.suites.valkey_server import HOST, ValkeyServer

START_SECONDS = 240.0
_END_SECONDS = 20.0
_LOG_LINES = 15
# Room for an answer behind the longest prompt.
_ANSWER = 64


class PrivateEngine:
    """One engine, started again and again on the same port with the same servers.

    Attributes:
        url: of its HTTP server.
        valkey: the servers' addresses, with {rank}.
        log: of all its processes.
    """

    def __init__(self, folder: Path, ranks: int, valkey: str, words: Sequence[str]) -> None:
        """Take what follows `headrace serve prefill` as `words`."""
        self._ranks = ranks
        self.valkey = valkey
        self.log = folder / "engine.log"
        self._port = _free_port()
        self.url = f"http://{HOST}:{self._port}"
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, endpoint: Endpoint) -> None:
        """Start the engine and return once it answers.

        Raises:
            EndpointError: it ends or stays silent; its log is quoted.
        """
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        with self.log.open("ab") as log:
            process = self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "headrace.cli", "serve", "prefill", "--host", HOST,
                    "--port", str(self._port), *self._words,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**_environment(self._ranks), "PATH": path}, start_new_session=True,
            )  # fmt: skip
        if not endpoint.wait(START_SECONDS, lambda: process.poll() is None):
            self.stop()
            for line in self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]:
                say(f"  | {line}")
            raise EndpointError(
                f"{self.url}: expected the private engine within {START_SECONDS:.0f} s, found "
                f"none; see {self.log}"
            )

    def restart(self, endpoint: Endpoint) -> None:
        """End the engine, and start it with empty memory."""
        self.stop()
        self.start(endpoint)

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


def run_private(
    options: Options, on_result: Callable[[CaseResult], None], *, async_loading: bool
) -> Outcome:
    """Run the suite against a deployment of its own; see `run_suite`.

    The engine's log stays in the output folder.
    """
    longest = max(each.length for each in plan(options))
    folder = options.out / "private"
    with (
        private_engine(
            folder,
            ranks=options.ranks,
            chunk=options.chunk,
            longest=longest,
            async_loading=async_loading,
        ) as engine,
        Endpoint(engine.url, "", options.patience) as endpoint,
    ):
        engine.start(endpoint)
        mine = replace(
            options, endpoint=engine.url, valkey=(engine.valkey,), logs=(engine.log,),
            dialect="needle-model", restart="private",
        )  # fmt: skip
        return run_suite(mine, on_result, engine.restart)


@contextmanager
def private_engine(
    folder: Path, *, ranks: int, chunk: int, longest: int, async_loading: bool
) -> Iterator[PrivateEngine]:
    """Write the model, start the servers, and end everything with the block.

    The engine is not started yet.

    Raises:
        MachineError: no server binary, or no free ports.
    """
    # Imported here: it needs torch, which a client's machine need not have.
    from headrace.suites.needle_model import write_needle_model

    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model"
    write_needle_model(model)
    tokens = str(longest + _ANSWER)
    with ExitStack() as stack:
        base = _free_ports(ranks)
        for rank in range(ranks):
            server = ValkeyServer()
            server.port = base + rank
            stack.enter_context(server)
        valkey = f"{HOST}:{base // 10}{{rank}}"
        engine = PrivateEngine(
            folder, ranks, valkey,
            [
                str(model), "--cpu", "--pcp", "1", "--tp", str(ranks), "--no-nixl",
                "--no-expert-parallel", "--kv-cache-dtype", "auto", "--max-model-len", tokens,
                "--longest-prompt", tokens, "--bytes-per-token", "4608", "--l1-gib", "1",
                "--chunk-size", str(chunk), "--resp-threads", "2",
                # A rank may wait for its core; an answer that never comes is found all the same.
                "--lookup-timeout", "20000",
                # Between two looks for an answer vLLM's processes spin; on two cores they would
                # keep the servers from running for seconds at the deployment's half millisecond.
                "--set", "extra_config.lookup_backoff_time=0.02", "--remote-url", f"resp://{valkey}",
                "--async-loading" if async_loading else "--sync-loading", "--",
                # Latent attention on the CPU reads a prompt in one step.
                "--dtype", "float32", "--enforce-eager", "--max-num-batched-tokens", tokens,
                "--max-num-seqs", "2", "--seed", "0",
            ],
        )  # fmt: skip
        engine.log.write_bytes(b"")
        try:
            yield engine
        finally:
            engine.stop()


def _environment(ranks: int) -> dict[str, str]:
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
    }  # fmt: skip


def _free_ports(count: int) -> int:
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
