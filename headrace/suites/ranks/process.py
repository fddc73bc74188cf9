"""The process that imports LMCache once and forks into ranks, and what a forked rank does.

The import takes longer than everything that a test does with it. The parent process therefore
starts no thread and builds nothing; a rank that hung or died is replaced within a second.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


def serve(make_rank: Callable[[], Any], imported: Callable[[], None]) -> None:
    """Fork a rank for every socket that arrives on the file descriptor in argv, until it closes.

    Args:
        make_rank: builds, in the forked process, what answers the pool's commands.
        imported: imports all that a rank needs, in this process.
    """
    commands = socket.socket(fileno=int(sys.argv[1]))
    # The kernel reaps the ranks: the pool sees that one has ended by its closed socket.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    imported()
    gc.collect()
    gc.freeze()
    commands.sendall(b"ready\n")
    while True:
        message, descriptors, _, _ = socket.recv_fds(commands, 65536, 1)
        if not message:
            return
        if os.fork() == 0:
            commands.close()
            _run_rank(descriptors[0], Path(message.decode()), make_rank)
        os.close(descriptors[0])


def _run_rank(descriptor: int, log: Path, make_rank: Callable[[], Any]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A rank that hangs in a collective would outlive everyone who could end it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # LMCache logs to standard output.
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    faulthandler.enable()
    # Not a Python handler: a rank that hangs in native code would never run it.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with socket.socket(fileno=descriptor) as wire:
        _say(wire, {"pid": os.getpid()})
        commands = make_rank().commands()
        with wire.makefile("rb") as requests:
            for line in requests:
                request = json.loads(line)
                _say(wire, _answer(commands[request.pop("do")], request))
    # Threads that the release left hanging would keep a normal exit waiting.
    os._exit(0)


def _answer(act: Callable[..., dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return act(**request)
    except Exception as error:  # noqa: BLE001 - the pool raises it, or the test is about it
        faulthandler.dump_traceback(all_threads=False)
        sys.excepthook(type(error), error, error.__traceback__)
        return {"raised": f"{type(error).__name__}: {error}"}


def _say(wire: socket.socket, message: dict[str, Any]) -> None:
    wire.sendall(json.dumps(message).encode() + b"\n")
