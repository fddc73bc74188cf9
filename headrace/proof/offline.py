"""No import of what an engine consists of reaches for the network.

Python tells an audit hook of each connection and each look-up before it is tried, so one that
fails, and whose failure is swallowed, counts as well. What compiled code does on its own is not
seen; the container that this runs in has no network to give it.

Request: `{"modules": ["torch", "vllm"], "environment": {"NAME": "value"}}`. Each is imported in
this process, one after the other.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from headrace.proof.answer import Answer, Request
from headrace.proof.extensions import says_driver

CONNECTS = ("socket.connect", "socket.sendto", "socket.sendmsg")
LOOKS_UP = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


def prove(request: Request) -> Answer:
    """Import, and name who reached for what; a module that only the driver stops is void."""
    answer = Answer()
    os.environ.update(request.get("environment", {}))
    seen: list[str] = []
    sys.addaudithook(lambda event, arguments: watch(event, arguments, seen))
    void: dict[str, str] = {}
    imported: list[str] = []
    for module in request["modules"]:
        before = len(seen)
        try:
            importlib.import_module(module)
        except Exception as failure:  # noqa: BLE001 - a package may raise anything when imported
            reason = f"{type(failure).__name__}: {failure}"
            if lacks_driver(failure):
                void[module] = " ".join(reason.split())
            else:
                answer.problems.append(f"{module} does not import: {' '.join(reason.split())}")
        else:
            imported.append(module)
        answer.problems += [f"importing {module}: {what}" for what in dict.fromkeys(seen[before:])]
    answer.facts.update(imported=imported, void=void)
    return answer


def watch(event: str, arguments: Sequence[Any], seen: list[str]) -> None:
    """Note a connection or a look-up that leaves this machine, and whose code asked for it."""
    if event in CONNECTS:
        asker, target = arguments[0], arguments[1]
        if target is None or asker.family == getattr(socket, "AF_UNIX", None):
            return
        host = target[0] if isinstance(target, tuple) and target else target
    elif event in LOOKS_UP:
        host = arguments[0]
    else:
        return
    if not is_here(host):
        name = host.decode(errors="replace") if isinstance(host, bytes) else host
        seen.append(f"{importer(sys._getframe(1))} asks the network for {name} ({event})")


def is_here(host: object) -> bool:
    """Tell whether an address or a name is this machine's own without asking anybody."""
    if host is None:
        return True
    text = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
    if text in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def importer(frame: FrameType | None) -> str:
    """Return the innermost module whose import led here."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            return str(frame.f_globals.get("__name__", "?"))
        frame = frame.f_back
    return "a thread"


def lacks_driver(failure: BaseException | None) -> bool:
    """Tell whether an import failed for nothing but the driver's library."""
    while failure is not None:
        if isinstance(failure, ImportError | OSError) and says_driver(str(failure)):
            return True
        failure = failure.__cause__ or failure.__context__
    return False
