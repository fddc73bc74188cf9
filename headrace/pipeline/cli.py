"""The commands of `python build.py`; each only calls its stage.

Exit codes are those of headrace/errors.py: a HeadraceError ends as one line and its own code.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn

import typer

from headrace.console import say
from headrace.errors import HeadraceError
from headrace.pipeline import commands_line, commands_series
from headrace.pipeline.revision import ask_this_checkout

INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Pinned sources → patched wheels → image → proof → publish.",
)

for module in (commands_line, commands_series):
    for command in module.COMMANDS:
        app.command()(command)


def main() -> None:
    """Run one command."""
    ask_this_checkout()
    # Help has frames and arrows: where the terminal's encoding lacks them, the words still count.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Modes of generated files go into wheels, and must not depend on the caller's umask.
    os.umask(0o022)
    signal.signal(signal.SIGTERM, _stop)
    try:
        app()
    except HeadraceError as stop:
        say(f"{type(stop).__name__}: {stop}")
        sys.exit(stop.exit_code)
    except SystemExit as stop:
        # Typer makes this of KeyboardInterrupt.
        if stop.code in INTERRUPTED:
            say("interrupted; the same command goes on where it stopped")
        raise


def _stop(number: int, frame: object) -> NoReturn:
    # As an exception it ends child processes, which a plain death would leave behind.
    sys.exit(128 + number)
