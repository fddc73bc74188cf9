"""Who uses the build's own daemon: it is stopped by the last build, not under another one's hands.

Every build holds `users.lock` shared while it works. `door.lock` is held while a build enters or
leaves, so that none starts what another one is stopping. Locks of a killed build are gone with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# There while it was a build that started the daemon; ci/docker-daemon.sh removes it when a person
# starts one.
STARTED_BY_A_BUILD = "started-by-a-build"


def run_folder() -> Path:
    """Return the folder of the daemon's socket, as ci/docker-daemon.sh has it."""
    return Path(os.environ.get("HEADRACE_DOCKER_RUN") or "/run/headrace-docker")


def process_of(folder: Path) -> int | None:
    """Return the id of the living process that `folder` names as its daemon, None without one."""
    try:
        number = int((folder / "dockerd.pid").read_text())
        os.kill(number, 0)
    except (OSError, ValueError, OverflowError):
        return None
    return number


@contextlib.contextmanager
def used(folder: Path, start: Callable[[], bool], stop: Callable[[], None]) -> Iterator[None]:
    """Use the daemon of `folder`; `start` returns whether it had to, `stop` is for the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / STARTED_BY_A_BUILD
    with _opened(folder / "users.lock") as users:
        with _door(folder):
            fcntl.flock(users, fcntl.LOCK_SH)
            if start():
                mark.touch()
        try:
            yield
        finally:
            with _door(folder):
                if _alone(users) and mark.exists():
                    stop()
                    mark.unlink(missing_ok=True)


@contextlib.contextmanager
def named_in_use(host: str) -> Iterator[None]:
    """Keep other builds from stopping the daemon if `host`, of DOCKER_HOST, is the build's own."""
    with contextlib.ExitStack() as stack:
        if host == f"unix://{run_folder()}/docker.sock":
            # Who may not write there did not start it, and finds no lock where no build has been.
            with contextlib.suppress(OSError):
                users = stack.enter_context(_opened(run_folder() / "users.lock"))
                fcntl.flock(users, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        yield number
    finally:
        os.close(number)


@contextlib.contextmanager
def _door(folder: Path) -> Iterator[None]:
    with _opened(folder / "door.lock") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        yield


def _alone(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
