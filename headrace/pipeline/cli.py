"""The commands of `python build.py`; each only calls its stage.

Exit codes are those of headrace/errors.py: a HeadraceError ends as one line and its own code.
"""

from __future__ import annotations

import os
import sys

import typer

from headrace.console import say
from headrace.errors import HeadraceError
from headrace.pipeline import commands_line, commands_series

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
    # Modes of generated files go into wheels, and must not depend on the caller's umask.
    os.umask(0o022)
    try:
        app()
    except HeadraceError as stop:
        say(f"{type(stop).__name__}: {stop}")
        sys.exit(stop.exit_code)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on where it stopped")
        sys.exit(130)
