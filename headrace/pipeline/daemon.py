"""A docker daemon for the build: the one that answers, or one of our own while it lasts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.console import call, say
from headrace.errors import MachineError
from headrace.pipeline.daemon_users import named_in_use, process_of, run_folder, used
from headrace.pipeline.layout import Layout

# A daemon that hangs must not hang the build.
PATIENCE = 60
INSTALL = "run ci/install-debian.sh as root on Debian 12, or install docker with buildx"
SNAPSHOTTER = 'set {"features": {"containerd-snapshotter": true}} in its daemon.json and restart it'


@dataclass(frozen=True)
class Daemon:
    """A daemon that can build and load OCI images.

    Attributes:
        host: its socket as DOCKER_HOST names it, or "" for docker's own default.
        version: of the server.
    """

    host: str
    version: str


@contextlib.contextmanager
def ensure_daemon(layout: Layout) -> Iterator[Daemon]:
    """Yield a usable daemon; within the block, DOCKER_HOST leads every child process to it.

    One that answers is used as it is. Otherwise root on Linux gets one from ci/docker-daemon.sh,
    which other builds of this machine may use too: the last of them stops it.

    Raises:
        MachineError: docker or buildx is missing, a daemon answers that cannot export OCI images,
            or none answers and none can be started.
    """
    with named_in_use(os.environ.get("DOCKER_HOST", "")):
        found = probe()
        if found is not None:
            yield found
            return
    script = layout.root / "ci" / "docker-daemon.sh"
    _require_startable()

    def start() -> bool:
        """Start it if it does not answer, and lead every child process to it."""
        before = process_of(run_folder())
        status = subprocess.run([script, "status"], timeout=PATIENCE, check=False)
        # The script prints a line for a shell to evaluate: export DOCKER_HOST=unix://…
        printed = call([script, "start"], error=MachineError, timeout=PATIENCE * 2)
        os.environ["DOCKER_HOST"] = printed.strip().removeprefix("export DOCKER_HOST=")
        # A person's may not have answered yet: the script then waits for it, and starts none.
        waited_for = before is not None and process_of(run_folder()) == before
        return status.returncode != 0 and not waited_for

    def stop() -> None:
        call([script, "stop"], error=MachineError, timeout=PATIENCE * 2)

    with used(run_folder(), start, stop):
        try:
            started = probe()
            if started is None:
                raise MachineError(
                    f"{script}: expected the daemon it started to answer, found silence"
                )
            yield started
        finally:
            # It was not set, or the first `probe` would have raised.
            del os.environ["DOCKER_HOST"]


def probe() -> Daemon | None:
    """Return the daemon that answers now, or None.

    Raises:
        MachineError: docker or buildx is missing, the daemon that DOCKER_HOST names is silent, or
            the one that answers cannot export OCI images.
    """
    if shutil.which("docker") is None:
        raise MachineError(f"couldn't find 'docker' in PATH; {INSTALL}")
    host = os.environ.get("DOCKER_HOST", "")
    info = _ask("info", "--format", "{{json .}}")
    facts = _parse(info.stdout)
    version = str(facts.get("ServerVersion") or "")
    if info.returncode != 0 or not version:
        if host:
            raise MachineError(
                f"DOCKER_HOST={host}: expected a docker daemon, found none that answers; "
                "start it, or unset DOCKER_HOST"
            )
        return None
    if _ask("buildx", "version").returncode != 0:
        raise MachineError(f"docker: expected its buildx plugin, found none; {INSTALL}")
    if not exports_oci(facts):
        raise MachineError(
            f"docker daemon {version}: expected the containerd image store, which exports OCI "
            f"images, found another; {SNAPSHOTTER}"
        )
    return Daemon(host, version)


def exports_oci(facts: dict[str, object]) -> bool:
    """Return whether `docker info` names the containerd image store."""
    status = facts.get("DriverStatus")
    pairs = status if isinstance(status, list) else []
    return any("io.containerd.snapshotter" in str(pair) for pair in pairs)


def _require_startable() -> None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise MachineError(
            "docker: expected a daemon that answers, found none; start it "
            "(only root on Linux can have one started for the build)"
        )
    if shutil.which("dockerd") is None:
        raise MachineError(
            f"docker: expected a daemon that answers, found none and no 'dockerd'; {INSTALL}"
        )
    say("no docker daemon answers: starting one for this build")


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["docker", *words], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise MachineError(
            f"docker {' '.join(words[:2])}: expected an answer within {PATIENCE} s, found none; "
            "restart the docker daemon"
        ) from late


def _parse(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
