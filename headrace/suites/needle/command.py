"""`headrace needle`: the command's options, and what it prints."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, cast

import typer

from headrace.errors import ConfigurationError
from headrace.folder import output_folder
from headrace.suites.needle.option_words import checked_tag, numbers, one_of, seconds
from headrace.suites.needle.options import FAULTS, LENGTHS, PAGE, SUITE, DialectName, Options

# What two cores answer in minutes.
PRIVATE_RANKS, PRIVATE_LENGTHS = 2, (1100, 4000)
_DIALECTS = ("plain", "needle-model")


def needle(
    endpoint: Annotated[
        str,
        typer.Argument(metavar="[URL]", help="An OpenAI-compatible server.", show_default=False),
    ] = "",
    model: Annotated[str, typer.Option(help="Its model. Default: the only one.")] = "",
    valkey: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The servers that hold L2, in the order of the ranks; {rank} stands for each. "
            "LMCACHE_RESP_USERNAME and LMCACHE_RESP_PASSWORD log in.",
        ),
    ] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private", help="Needs no URL: an engine on this CPU, an exact model, Valkey shards."
        ),
    ] = False,
    sync_loading: Annotated[
        bool, typer.Option("--sync-loading", help="The private engine loads inside its steps.")
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks that share a prompt's chunks: 8, with --private 2."),
    ] = None,
    chunk_size: Annotated[int, typer.Option(min=16, help="Tokens of a chunk.")] = 256,
    lengths: Annotated[
        str,
        typer.Option(
            help="Tokens of the prompts, separated by commas. Default: six from 12.8k to "
            "166.7k; with --private 1,100 and 4,000.",
        ),
    ] = "",
    brief: Annotated[
        str, typer.Option(help="Tokens of further prompts, asked cold and from L2 only.")
    ] = "",
    depths: Annotated[
        str, typer.Option(help="Percent, for every length. Default: one by chance for each.")
    ] = "",
    seams: Annotated[
        bool, typer.Option("--seams/--no-seams", help="Also every border and every rank.")
    ] = True,
    seed: Annotated[
        int | None, typer.Option(help="Of texts and codes. Default: a new one.")
    ] = None,
    haystack: Annotated[
        Path | None, typer.Option(help="Text between the needles. Default: made text.")
    ] = None,
    dialect: Annotated[
        str | None,
        typer.Option(help="How prompts are worded: plain, or needle-model. Default: plain."),
    ] = None,
    distractors: Annotated[
        int, typer.Option(min=0, help="Other codes in each prompt, as far as they fit.")
    ] = 8,
    restart: Annotated[
        str | None,
        typer.Option(
            help="How to restart the engine: a shell command, kubectl:[NAMESPACE/]DEPLOYMENT, "
            "or ask. Default: ask."
        ),
    ] = None,
    engine_log: Annotated[
        list[Path] | None, typer.Option(help="The engine's log file; repeatable.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(help=f"Also run a fault arm: {', '.join(FAULTS)}. It disturbs a server."),
    ] = None,
    stop_shard: Annotated[
        str,
        typer.Option(help="Shell command that stops the server of {rank}; --private needs none."),
    ] = "",
    start_shard: Annotated[str, typer.Option(help="Shell command that starts it again.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Ask only matching prompts.")
    ] = None,
    list_prompts: Annotated[
        bool, typer.Option("--list", help="Print the names of the prompts and stop.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, cells.jsonl, results.jsonl, junit.xml.")
    ] = Path("headrace-report/needle"),
    image: Annotated[str, typer.Option(help="The image's digest, for the report.")] = "",
    patience: Annotated[float, typer.Option(help="Seconds for one answer.")] = 600.0,
    settle: Annotated[
        float, typer.Option(help="Seconds that stores may take to reach the servers.")
    ] = 60.0,
    tag: Annotated[str, typer.Option(help="Marks this run's keys, to ask a seed again.")] = "",
) -> None:
    """Prove that cached answers are right: codes in long prompts, cold, from L1, L2, cold again.

    Ends with 0 if every cell is green, 11 if one is red, 12 if one is void or the run was
    interrupted after its first answer. With 13 if the endpoint does not answer, 15 if it has no
    such model, 16 if a prompt is too long for it, 17 if it does not report cached tokens, 18 if
    a server of --valkey cannot be reached, 10 if a tool is missing or the folder cannot be
    written, 2 for a bad option.
    """
    if bool(endpoint) == private:
        raise ConfigurationError(
            f"expected an address or --private, found {'both' if private else 'neither'}; "
            "for example headrace needle http://127.0.0.1:8000"
        )
    for option, value in (
        ("--valkey", valkey), ("--restart", restart), ("--model", model), ("--dialect", dialect),
        ("--engine-log", engine_log),
    ):  # fmt: skip
        if private and value:
            raise ConfigurationError(
                f"{option}: expected none with --private, which brings its own; leave it out"
            )
    options = Options(
        endpoint=endpoint,
        private=private,
        sync_loading=sync_loading,
        brief=numbers("--brief", brief, 1, 10_000_000),
        model=model,
        valkey=tuple(valkey or ()),
        ranks=ranks or (PRIVATE_RANKS if private else 8),
        chunk=chunk_size,
        lengths=numbers("--lengths", lengths, 1, 10_000_000)
        or (PRIVATE_LENGTHS if private else LENGTHS),
        depths=numbers("--depths", depths, 0, 100),
        seams=seams,
        seed=secrets.randbelow(10**9) if seed is None else seed,
        haystack=haystack,
        dialect=cast("DialectName", one_of("--dialect", dialect or "plain", _DIALECTS)),
        distractors=distractors,
        restart="ask" if restart is None else restart,
        logs=tuple(engine_log or ()),
        faults=tuple(one_of("--fault", each, FAULTS) for each in fault or ()),
        stop_shard=stop_shard,
        start_shard=start_shard,
        only=tuple(only or ()),
        out=out,
        image=image,
        patience=seconds("--patience", patience, 1),
        settle=seconds("--settle", settle, 0),
        tag=checked_tag(tag),
    )
    if list_prompts:
        from headrace.suites.needle.plan import chosen, plan

        for wanted in chosen(plan(options), options.only):
            typer.echo(wanted.name)
        return
    run(options)


def run(options: Options) -> None:
    """Run the suite, show it, write the report, and turn the verdict into the exit status."""
    from rich.console import Console

    from headrace.suites.needle.page import headline
    from headrace.suites.needle.private import run_private
    from headrace.suites.needle.report import write_report
    from headrace.suites.needle.run import run_suite
    from headrace.suites.results import raise_unless_green
    from headrace.suites.show import Reporter

    # Before the first prompt: a report that cannot be written costs all answers.
    with output_folder(options.out):
        with Reporter(SUITE, Console()) as reporter:
            if options.private:
                outcome = run_private(options, reporter.case)
            else:
                outcome = run_suite(options, reporter.case)
            reporter.finish(outcome.results)
        write_report(outcome)
    typer.echo(f"{headline(outcome)}; seed {options.seed}; see {options.out / PAGE}")
    raise_unless_green(SUITE, outcome.results, options.out)
