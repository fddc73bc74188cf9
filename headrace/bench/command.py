"""`headrace bench`: the commands' options, and what they print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.console import console, say

app = typer.Typer(help="Stock and patched, measured in one run.", no_args_is_help=True)

_Stock = Annotated[
    Path, typer.Option(metavar="SITE", help="Folder with the stock lmcache package.")
]
_Patched = Annotated[
    Path, typer.Option(metavar="SITE", help="Folder with the patched lmcache package.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON instead of the table.")]
_STOCK = Path("build/site/stock")
_PATCHED = Path("build/site/patched")
_STOCK_TREE = Path("build/sources/flashinfer-0.7.0.post1")
_PATCHED_TREE = Path("build/patched/flashinfer-0.7.0.post1")
_COLUMNS = ("", "stock", "patched", "patched / stock")


@app.command("resp")
def bench_resp(
    stock: _Stock = _STOCK,
    patched: _Patched = _PATCHED,
    out: Annotated[Path, typer.Option(help="Folder for bench.json and the logs.")] = Path(
        "headrace-report/bench-resp"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="A few pairs, judged by nobody: does it work?")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Compare two builds of the RESP client against one private Valkey.

    Ends with 0 if every row is at least 0.97 of stock, 11 if one is slower, 12 if one stays
    undecided, 2 for a bad option.
    """
    from headrace.bench.comparison import raise_unless_passed, table_rows
    from headrace.bench.plan import FULL, QUICK
    from headrace.bench.resp import compare

    with console.status("starting") as status:

        def step(what: str) -> None:
            status.update(what)
            if not console.is_terminal:
                say(f"{what} ...")

        result = compare(stock, patched, QUICK if quick else FULL, out, step)
    _show(out / "bench.json", as_json, (*_COLUMNS, "verdict"), table_rows(result))
    raise_unless_passed(result, out)


@app.command("shard")
def bench_shard(
    stock: _Stock = _STOCK,
    patched: _Patched = _PATCHED,
    out: Annotated[Path, typer.Option(help="Folder for bench-shard.json and the logs.")] = Path(
        "headrace-report/bench-shard"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Two ranks, small chunks: does it work?")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Compare how two builds store and load one prompt on all ranks of a replica.

    Every rank is a process with its own engine and its own Valkey. Ends with 11 if the patched
    build's most loaded rank stores more than its share, or hangs; times are not judged.
    """
    from headrace.bench.shard import compare_shards
    from headrace.bench.shard_plan import QUICK_SHARD, ShardPlan
    from headrace.bench.shard_result import raise_unless_balanced, shard_table_rows

    def step(what: str) -> None:
        say(f"{what} ...")

    result = compare_shards(stock, patched, QUICK_SHARD if quick else ShardPlan(), out, step)
    _show(out / "bench-shard.json", as_json, _COLUMNS, shard_table_rows(result))
    raise_unless_balanced(result, out)


@app.command("kernel")
def bench_kernel(
    stock: Annotated[
        Path, typer.Option(metavar="TREE", help="The pinned FlashInfer, unpacked.")
    ] = _STOCK_TREE,
    patched: Annotated[
        Path, typer.Option(metavar="TREE", help="The same with the series applied.")
    ] = _PATCHED_TREE,
    nvcc: Annotated[
        Path | None, typer.Option(help="The compiler; default: CUDA_HOME, PATH, build/gate.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for bench-kernel.json.")] = Path(
        "headrace-report/bench-kernel"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Two sizes, few rounds: does it work?")
    ] = False,
    as_json: _AsJson = False,
) -> None:
    """Compare two builds of the MoE activation on this machine's GPU: the same bits, and how fast.

    Needs an SM90, SM100 or SM103. Ends with 11 if a bit differs, with 10 where there is no GPU;
    times are not judged.
    """
    from headrace.bench.kernel import compare_kernels
    from headrace.bench.kernel_plan import QUICK_KERNEL, KernelPlan
    from headrace.bench.kernel_result import TABLE_HEAD, kernel_table_rows, raise_unless_same_bits
    from headrace.bench.kernel_source import activation_text

    def step(what: str) -> None:
        say(f"{what} ...")

    # Who named a tree hears of that first; what only was not built yet matters once there is a GPU.
    for tree, usual in ((stock, _STOCK_TREE), (patched, _PATCHED_TREE)):
        if tree != usual:
            activation_text(tree)
    plan = QUICK_KERNEL if quick else KernelPlan()
    result = compare_kernels(stock, patched, plan, out, step, nvcc=nvcc)
    say(f"{result.device}: its own copy reads and writes {result.copy_tbs:.2f} TB/s")
    _show(out / "bench-kernel.json", as_json, TABLE_HEAD, kernel_table_rows(result))
    raise_unless_same_bits(result.rows)


def _show(file: Path, as_json: bool, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print the JSON that a bench wrote, or its table."""
    from rich.console import Console
    from rich.table import Table

    if as_json:
        typer.echo(file.read_text(), nl=False)
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=None if console.is_terminal else 120).print(table)
