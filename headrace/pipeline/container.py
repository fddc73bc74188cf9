"""Run things in a container of exactly one image; the container is always removed."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.console import call, disk_error, say
from headrace.errors import ImageError, MachineError, VerificationError
from headrace.pipeline.oci import Image
from headrace.pipeline.oci_archive import unpack_archive

DOCKER_S = 120.0
SAVE_S = 1800.0
# Nothing that is proved needs a privilege, and an image under test gets none.
CONFINED = ("--network", "none", "--pull", "never", "--cap-drop", "ALL")
# vLLM's processes share 160 MiB there, and docker's own default is 64.
SHARED_MEMORY = ("--shm-size", "1g")


@dataclass(frozen=True)
class Outcome:
    """How a process in a container ended. `status` is -1 if it ran past its deadline."""

    status: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line that says something, for an error of one line."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1] if lines else "it printed nothing"


@dataclass(frozen=True)
class Container:
    """A container that `created` made; `id` is the daemon's."""

    id: str

    def run(self, *, stdin: str = "", timeout: float) -> Outcome:
        """Start it, feed `stdin`, and wait for its end."""
        return _docker(["start", "--attach", "--interactive", self.id], stdin, timeout)

    def start(self) -> None:
        """Start it in the background."""
        call(["docker", "start", self.id], error=ImageError, timeout=DOCKER_S)

    def execute(self, words: Sequence[str], *, stdin: str = "", timeout: float) -> Outcome:
        """Run a further process in the running container."""
        return _docker(["exec", "--interactive", self.id, *words], stdin, timeout)

    def ended(self) -> str:
        """Return "ended with status N" if its main process is gone, "" if it runs."""
        state = call(
            ["docker", "inspect", "--type", "container", "--format",
             "{{.State.Running}} {{.State.ExitCode}}", self.id],
            error=ImageError, timeout=DOCKER_S,
        )  # fmt: skip
        running, status = state.split()
        return "" if running == "true" else f"ended with status {status}"

    def save_log(self, path: Path) -> None:
        """Write all that the container printed to `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            subprocess.run(
                ["docker", "logs", self.id],
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=DOCKER_S,
                check=False,
            )


@contextlib.contextmanager
def created(
    image_id: str,
    words: Sequence[str],
    *,
    entrypoint: str | None = None,
    mounts: Mapping[Path, str] | None = None,
    writable: Mapping[Path, str] | None = None,
    env: Mapping[str, str] | None = None,
    gpus: str = "",
) -> Iterator[Container]:
    """Create a container of `image_id` without a network; remove it when the block ends.

    Args:
        entrypoint: replaces the image's own; None keeps it.
        mounts, writable: folder on the host -> folder in the container.
        gpus: which GPUs it gets, as docker names them; "" for none.

    Raises:
        VerificationError: the daemon made it from another image than `image_id`.
        ImageError: the daemon refused.
    """
    options = [*CONFINED, *SHARED_MEMORY, "--interactive"]
    if entrypoint is not None:
        options += ["--entrypoint", entrypoint]
    for source, target in (mounts or {}).items():
        options += ["--mount", f"type=bind,src={source},dst={target},readonly"]
    for source, target in (writable or {}).items():
        options += ["--mount", f"type=bind,src={source},dst={target}"]
    for name, value in (env or {}).items():
        options += ["--env", f"{name}={value}"]
    if gpus:
        options += ["--gpus", gpus]
    identity = call(
        ["docker", "create", *options, image_id, *words], error=ImageError, timeout=DOCKER_S
    ).strip()
    try:
        runs = call(
            ["docker", "inspect", "--type", "container", "--format", "{{.Image}}", identity],
            error=ImageError,
            timeout=DOCKER_S,
        ).strip()
        if runs != image_id:
            raise VerificationError(
                f"container {identity[:12]}: expected image {image_id}, found {runs}"
            )
        yield Container(identity)
    finally:
        done = _docker(["rm", "--force", "--volumes", identity], "", DOCKER_S)
        if done.status != 0:
            say(f"container {identity[:12]} could not be removed: {done.last_line}")


def held_digest(reference: str) -> str:
    """Return the digest of what the daemon holds as `reference`.

    `ensure_daemon` accepts only the containerd image store, whose ids are manifest digests.

    Raises:
        ImageError: it holds no such image.
    """
    shown = _docker(["image", "inspect", "--format", "{{.Id}}", reference], "", DOCKER_S)
    if shown.status != 0:
        raise ImageError(
            f"{reference}: expected an image in the docker daemon, found none; "
            f"run 'docker pull {reference}'"
        )
    return shown.stdout.strip()


def export_layout(reference: str, folder: Path) -> Image:
    """Write the image that the daemon holds as `reference` to the OCI layout `folder`.

    Raises:
        ImageError: the daemon refused, or wrote something else than one image.
        MachineError: the disk is full.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder.parent, suffix=".tar") as archive:
            words = ["docker", "save", "--output", archive.name, reference]
            call(words, error=ImageError, timeout=SAVE_S)
            with Path(archive.name).open("rb") as stream:
                return unpack_archive(stream, folder)
    except OSError as failure:
        raise disk_error(failure, folder.parent) from failure


def _docker(words: Sequence[str], stdin: str, timeout: float) -> Outcome:
    try:
        done = subprocess.run(
            ["docker", *words],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(-1, "", f"did not end within {timeout:.0f} s")
    except FileNotFoundError as missing:
        raise MachineError("couldn't find 'docker' in PATH; run ci/install.sh") from missing
    return Outcome(done.returncode, done.stdout, done.stderr)
