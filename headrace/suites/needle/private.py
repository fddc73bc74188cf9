"""A deployment of one's own for the suite: the needle model on the CPU, and a Valkey for each rank.

The ranks share a prompt's latent KV by tensor parallelism, as they would by prefill context
parallelism, which vLLM does not have on the CPU. Everything is on loopback and ends with the block.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from headrace.console import disk_error, say
from headrace.engine.settings_lmcache import has_sharded_store, installed_lmcache
from headrace.errors import MachineError
from headrace.suites.needle.ahead import check_prompts
from headrace.suites.needle.client import Endpoint
from headrace.suites.needle.engine import PrivateEngine, free_ports, programs
from headrace.suites.needle.options import SUITE, Options
from headrace.suites.needle.plan import plan
from headrace.suites.needle.run import Outcome, run_suite
from headrace.suites.results import CaseResult
from headrace.suites.valkey_server import HOST, ValkeyServer

# Room for an answer behind the longest prompt.
_ANSWER = 64
MODEL = "needle-model"


def run_private(options: Options, on_result: Callable[[CaseResult], None]) -> Outcome:
    """Run the suite against a deployment of its own; see `run_suite`.

    The engine's log stays in the output folder. An LMCache without the sharded store is run as it
    is, with one server, and asked for the same proof: it cannot give it.

    Raises:
        ConfigurationError: an option cannot be followed.
        MachineError: there is no vllm, no server binary or no free port, or the folder cannot be
            written.
    """
    check_prompts(replace(options, dialect="needle-model"))
    if shutil.which("vllm", path=programs()) is None:
        raise MachineError(
            "couldn't find 'vllm' in PATH; run it in the image: "
            "docker run --rm --shm-size 1g --entrypoint headrace IMAGE needle --private"
        )
    longest = max(each.length for each in plan(options))
    lmcache = installed_lmcache()
    store = _sharded_store(lmcache) if lmcache else None
    if store:
        say(f"{SUITE}: {store.seen}")
        on_result(store)
    with (
        private_engine(
            options.out,
            ranks=options.ranks,
            chunk=options.chunk,
            longest=longest,
            async_loading=not options.sync_loading,
            sharded=store is None,
        ) as engine,
        Endpoint(engine.url, "", options.patience) as endpoint,
    ):
        engine.start(endpoint)
        mine = replace(
            options, endpoint=engine.url, valkey=(engine.valkey,), logs=(engine.log,),
            dialect="needle-model", restart="private",
        )  # fmt: skip
        outcome = run_suite(mine, on_result, engine.restart, engine.without)
    return replace(outcome, whole=[store, *outcome.whole]) if store else outcome


def _sharded_store(lmcache: Path) -> CaseResult | None:
    """Return a void case if the installed LMCache has no sharded store."""
    if has_sharded_store(lmcache):
        return None
    return CaseResult(
        SUITE, "deployment/sharded-store", "each rank stores the chunks that it owns",
        f"{lmcache} has no sharded store: rank 0 stores all", "void", 0.0,
    )  # fmt: skip


@contextmanager
def private_engine(
    folder: Path,
    *,
    ranks: int,
    chunk: int,
    longest: int,
    async_loading: bool,
    sharded: bool = True,
) -> Iterator[PrivateEngine]:
    """Write the model, start the servers, and end everything with the block.

    The engine is not started yet. Its log, engine.log, stays in `folder`.

    Raises:
        MachineError: no server binary, no free ports, or the folder cannot be written.
    """
    # Imported here: it needs torch, which a client's machine need not have.
    from headrace.suites.needle_model.checkpoint import write_needle_model

    tokens = str(longest + _ANSWER)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "engine.log").write_bytes(b"")
            # Not below `folder`, which may belong to another user than ours, who must be able to
            # remove what is in it.
            model = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{MODEL}-"))
            write_needle_model(Path(model))
        except OSError as failure:
            raise disk_error(failure, folder) from failure
        base = free_ports(ranks)
        servers = [ValkeyServer() for _ in range(ranks)]
        for rank, server in enumerate(servers):
            server.port = base + rank
            stack.enter_context(server)
        valkey = f"{HOST}:{base // 10}{{rank}}"
        remote = valkey if sharded else valkey.replace("{rank}", "0")
        engine = PrivateEngine(
            folder, ranks, valkey,
            [
                model, "--cpu", "--pcp", "1", "--tp", str(ranks), "--no-nixl",
                "--no-expert-parallel", "--kv-cache-dtype", "auto", "--max-model-len", tokens,
                "--longest-prompt", tokens, "--bytes-per-token", "4608", "--l1-gib", "1",
                "--chunk-size", str(chunk), "--resp-threads", "2",
                # A rank may wait for its core; an answer that never comes is found all the same.
                "--lookup-timeout", "20000",
                # Between two looks for an answer vLLM's processes spin; on two cores they would
                # keep the servers from running for seconds at the deployment's half millisecond.
                "--set", "extra_config.lookup_backoff_time=0.02", "--remote-url", f"resp://{remote}",
                "--async-loading" if async_loading else "--sync-loading",
                # A load that falls short must not end the request. Right here, where a rank holds
                # whole prompts; under prefill context parallelism vLLM 0.31.0 must not do so.
                "--load-failure-policy", "recompute",
                "--sharded" if sharded else "--no-sharded", "--",
                # Latent attention on the CPU reads a prompt in one step.
                "--dtype", "float32", "--enforce-eager", "--max-num-batched-tokens", tokens,
                "--max-num-seqs", "2", "--seed", "0", "--served-model-name", MODEL,
            ],
            servers,
        )  # fmt: skip
        try:
            yield engine
        finally:
            engine.stop()
