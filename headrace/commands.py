"""The commands of `headrace`: suites, benches and engines, in a checkout or inside the image."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace import __version__
from headrace.bench.command import app as bench
from headrace.engine.serve import app as serve
from headrace.errors import ConfigurationError
from headrace.suites.missing_key.case import Endpoint
from headrace.suites.needle.command import needle

app = typer.Typer(
    help="Suites that prove a serving image, and benches that compare two builds.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
app.add_typer(serve, name="serve")
app.command("needle")(needle)


def run() -> None:
    """Run the command line."""
    # As an exception it ends the private servers, which a plain death would leave behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    app()


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command("missing-key")
def missing_key(
    valkey: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Use this server; keys get a random prefix and are removed. "
            "LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD log in. Default: a private one.",
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option(help="Folder for results.jsonl, junit.xml and the logs.")
    ] = Path("headrace-report/missing-key"),
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Run only matching cases.")
    ] = None,
    patience: Annotated[
        float,
        typer.Option(min=0.5, max=600, help="Seconds after which a command counts as hung."),
    ] = 3.0,
    list_cases: Annotated[
        bool, typer.Option("--list", help="Print the names of the cases and stop.")
    ] = False,
) -> None:
    """Prove that a missing key is a miss, and that every other reply leaves the client usable.

    Ends with 0 if every case is green, 11 if one is red, 12 if one could not be run,
    10 if there is no LMCache, 13 if the named server cannot be used, 2 for a bad option.
    """
    from rich.console import Console

    from headrace.suites.missing_key.group import SUITE
    from headrace.suites.missing_key.run import Options, choose, run_suite
    from headrace.suites.results import raise_unless_green
    from headrace.suites.show import Reporter

    if list_cases:
        for cases in choose(only or ()).values():
            for case in cases:
                typer.echo(case.name)
        return
    chosen = Options(endpoint(valkey) if valkey else None, out, tuple(only or ()), patience)
    with Reporter(SUITE, Console()) as reporter:
        results = run_suite(chosen, reporter.case)
        reporter.finish(results)
    raise_unless_green(SUITE, results, out)


def endpoint(text: str) -> Endpoint:
    """Return the server that HOST:PORT names, with the credentials of the environment.

    Raises:
        ConfigurationError: it is something else.
    """
    if "@" in text:
        raise ConfigurationError(
            "--valkey: expected HOST:PORT, found a user or a password in it; "
            "set LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD"
        )
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError(
            f"--valkey {text!r}: expected HOST:PORT with a port from 1 to 65535, "
            "for example 127.0.0.1:6379"
        )
    return Endpoint(
        host.removeprefix("[").removesuffix("]"),
        int(port),
        os.environ.get("LMCACHE_RESP_USERNAME", ""),
        os.environ.get("LMCACHE_RESP_PASSWORD", ""),
    )
