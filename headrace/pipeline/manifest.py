"""What was built from what: a stage whose inputs did not change does nothing.

`build/manifest.json` holds, for each stage, the sha256 of its inputs, the sha256 of its outputs
and the seconds it took. Outputs are trusted by size and modification time and hashed again only
when one of those moved, so that a build with nothing to do ends within seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from headrace.children import kept_open
from headrace.console import disk_error, say
from headrace.errors import MachineError
from headrace.pipeline.layout import Layout
from headrace.pipeline.record_file import read_record

BLOCK = 1 << 20
# For another build of the same checkout.
PATIENCE_S = 3600.0


def hash_text(text: str) -> str:
    """Return the sha256 of `text` in UTF-8, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """Return the sha256 of a file's bytes, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_tree(folder: Path) -> str:
    """Return one sha256 over names, modes (executable or not), links and bytes below `folder`."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            total.update(f"link {name} {path.readlink()}\n".encode())
        elif path.is_file():
            runs = "x" if path.stat().st_mode & 0o111 else "-"
            total.update(f"file {name} {runs} {hash_file(path)}\n".encode())
    return total.hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` so that a reader or a kill sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class Manifest:
    """The record of finished stages of one checkout."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.stages: dict[str, dict[str, Any]] = self._read()

    def run(
        self,
        stage: str,
        inputs: Mapping[str, str],
        outputs: Sequence[Path],
        action: Callable[[], None],
    ) -> bool:
        """Run `action` unless `stage` already ran with `inputs` and its `outputs` are unchanged.

        Args:
            stage: unique name, e.g. "wheels cpu".
            inputs: name → sha256 (or another text that changes when the input does).
            outputs: files and folders that `action` makes.

        Returns:
            True if `action` ran.

        Raises:
            MachineError: the disk is full or read-only; `action` raises its own beside that.
        """
        try:
            if self.is_current(stage, inputs, outputs):
                say(f"{stage}: up to date")
                return False
            self.forget(stage)
            started = time.monotonic()
            action()
            self.stages[stage] = {
                "inputs": dict(sorted(inputs.items())),
                "outputs": {self._name(path): _state(path) for path in outputs},
                "seconds": round(time.monotonic() - started, 1),
            }
            self._write()
        except OSError as failure:
            raise disk_error(failure, outputs[0]) from failure
        say(f"{stage}: done in {self.stages[stage]['seconds']} s")
        return True

    def is_current(self, stage: str, inputs: Mapping[str, str], outputs: Sequence[Path]) -> bool:
        """Return whether `stage` ran with exactly `inputs` and left `outputs` as they are now."""
        entry = self.stages.get(stage)
        if entry is None or entry["inputs"] != dict(sorted(inputs.items())):
            return False
        if set(entry["outputs"]) != {self._name(path) for path in outputs}:
            return False
        return all(_unchanged(path, entry["outputs"][self._name(path)]) for path in outputs)

    def forget(self, stage: str) -> None:
        """Drop what is known of `stage`, so that a kill in mid-action leaves no false record."""
        if self.stages.pop(stage, None) is not None:
            self._write()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.layout.root).as_posix()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            stages = read_record(self.layout.manifest).get("stages")
        except (FileNotFoundError, ValueError):
            # A manifest that cannot be read only costs a rebuild.
            return {}
        known = stages if isinstance(stages, dict) else {}
        return {stage: entry for stage, entry in known.items() if _is_entry(entry)}

    def _write(self) -> None:
        text = json.dumps({"schema": 1, "stages": self.stages}, indent=1, sort_keys=True)
        write_atomically(self.layout.manifest, text + "\n")


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("outputs"), dict):
        return False
    states = entry["outputs"].values()
    return "inputs" in entry and all(
        isinstance(state, dict) and {"stamp", "sha256"} <= set(state) for state in states
    )


def _state(path: Path) -> dict[str, str]:
    return {"stamp": _stamp(path), "sha256": hash_tree(path) if path.is_dir() else hash_file(path)}


def _unchanged(path: Path, state: Mapping[str, str]) -> bool:
    if not path.exists():
        return False
    return _stamp(path) == state["stamp"] or _state(path)["sha256"] == state["sha256"]


def _stamp(path: Path) -> str:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    facts = [(p.as_posix(), p.lstat().st_size, p.lstat().st_mtime_ns) for p in files]
    return hash_text(json.dumps(facts))


@contextlib.contextmanager
def build_lock(layout: Layout) -> Iterator[None]:
    """Hold this checkout's build for one process; a second one waits, and says so.

    It also waits for what a killed build left running, which writes where the next one does.

    Raises:
        MachineError: the other build did not end within an hour, or there can be no folder.
    """
    lock = filelock.FileLock(layout.build / ".lock")
    try:
        layout.build.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            say(f"{lock.lock_file}: another build of this checkout is running; waiting for it")
            lock.acquire(timeout=PATIENCE_S)
    except filelock.Timeout as late:
        raise MachineError(
            f"{lock.lock_file}: another build has held this checkout for an hour; "
            "end it (the lock goes with its process) and run the command again"
        ) from late
    except OSError as failure:
        raise disk_error(failure, layout.build) from failure
    try:
        with _children_lock(layout):
            yield
    finally:
        lock.release()


@contextlib.contextmanager
def _children_lock(layout: Layout) -> Iterator[None]:
    """Hold a lock that goes on as long as a child process, even where this one is killed."""
    path = layout.build / ".children-lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as failure:
        raise disk_error(failure, path) from failure
    try:
        _wait_for_children(fd, path)
        with kept_open(fd):
            yield
    finally:
        # Not by closing it alone: a program may have left another one running on purpose.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _wait_for_children(fd: int, path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    told = False
    while time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                say(f"{path}: what a killed build started is still running; waiting for its end")
            told = True
            time.sleep(0.2)
        else:
            return
    raise MachineError(
        f"{path}: expected the end of what a killed build started, found it running after an hour; "
        f"end it (`fuser {path}` names it) and run the command again"
    )
