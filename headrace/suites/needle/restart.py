"""Restarts the engine, so that what is answered next cannot come from its memory."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import typer

from headrace.console import call, say
from headrace.errors import ConfigurationError, EndpointError, MachineError
from headrace.suites.needle.client import Endpoint

# Weights of a large model take minutes to load.
_START_SECONDS = 1800.0
_KUBECTL = "kubectl:"
_GIVE = "give a shell command, or kubectl:DEPLOYMENT"


def check(how: str) -> None:
    """Find out before the first prompt whether `how` can be done.

    Raises:
        ConfigurationError: it names nothing, or the user is to be asked and there is no terminal.
        MachineError: there is no kubectl.
    """
    if not how.strip():
        raise ConfigurationError(
            f"--restart: expected how to restart the engine, found nothing; {_GIVE}"
        )
    if how == "ask" and not sys.stdin.isatty():
        raise ConfigurationError(
            "--restart: expected how to restart the engine, since there is no terminal to ask at; "
            f"{_GIVE}"
        )
    if how.startswith(_KUBECTL):
        words = how.removeprefix(_KUBECTL).split("/")
        if len(words) > 2 or not all(word.strip() for word in words):
            raise ConfigurationError(
                f"--restart {how}: expected {_KUBECTL}[NAMESPACE/]DEPLOYMENT; name the deployment"
            )
        if shutil.which("kubectl") is None:
            raise MachineError(
                f"--restart {how}: couldn't find 'kubectl' in PATH; install it, or give a shell "
                "command"
            )


def restart(how: str, endpoint: Endpoint, deadline: float = _START_SECONDS) -> None:
    """Restart the engine and return once it answers again.

    Args:
        how: a shell command that returns; "kubectl:[NAMESPACE/]DEPLOYMENT"; or "ask".
        deadline: seconds until the engine must answer.

    Raises:
        EndpointError: the command fails, the user declines, or the engine does not come back.
    """
    if how == "ask":
        if not typer.confirm("Restart the engine, wait until it serves, and go on?", err=True):
            raise EndpointError(
                "--restart ask: expected a restarted engine, found a no; answer with y, or "
                "give --restart a shell command"
            )
    elif how.startswith(_KUBECTL):
        _roll_out(how.removeprefix(_KUBECTL), deadline)
    else:
        say(f"+ {how}")
        try:
            # The user's own words, for a shell by design. Its output is not inherited: an engine
            # started in the background would hold a pipe open.
            done = subprocess.run(
                ["/bin/sh", "-c", how], stdin=subprocess.DEVNULL, stdout=sys.stderr,
                stderr=sys.stderr, timeout=deadline, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise EndpointError(
                f"--restart {shlex.quote(how)}: did not return within {deadline:.0f} s; "
                "let it start the engine in the background"
            ) from late
        if done.returncode:
            raise EndpointError(
                f"--restart {shlex.quote(how)}: expected status 0, found {done.returncode}; "
                "try it in a shell, and correct --restart"
            )
    if not endpoint.wait(deadline):
        raise EndpointError(
            f"{endpoint.url}/health: expected the engine back within {deadline:.0f} s of its "
            "restart, found none; see its log"
        )


def _roll_out(name: str, deadline: float) -> None:
    namespace, slash, deployment = name.rpartition("/")
    where = ["--namespace", namespace] if slash else []
    target = f"deployment/{deployment}"
    advice = "try it in a shell, and correct --restart"
    call(["kubectl", *where, "rollout", "restart", target], error=EndpointError, advice=advice)
    call(
        ["kubectl", *where, "rollout", "status", target, f"--timeout={deadline:.0f}s"],
        error=EndpointError,
        timeout=deadline + 30,
        advice=advice,
    )
