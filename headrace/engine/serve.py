"""`headrace serve`: start an engine with the deployment's settings, or print how."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from headrace.console import say
from headrace.engine.hand_over import become
from headrace.engine.settings import Decode, Pod, Prefill, pod
from headrace.engine.settings_command import launch
from headrace.engine.settings_lmcache import parse_assignments
from headrace.engine.settings_refusals import raise_if_refused

HELP = """Start a prefill or decode engine, or print its command line.

All other words, and none at all, go to vllm serve as they are. It is the image's command:
docker run IMAGE WORDS runs headrace serve WORDS where there is a vllm.

\b
  headrace serve prefill MODEL ...   the deployment's prefill engine
  headrace serve decode MODEL ...    its decode engine
  headrace serve MODEL ...           vllm serve MODEL ...
  headrace serve --model NAME ...    vllm serve --model NAME ...
  headrace serve --help=all          vLLM's own options

A model's folder that is itself called prefill or decode is given as ./prefill or ./decode."""
app = typer.Typer(help=HELP, context_settings={"help_option_names": ["--help", "-h"]})
_PASS_ON = {"allow_extra_args": True}

Model = Annotated[str, typer.Argument(help="Folder of the model, or a name that vLLM resolves.")]
Print = Annotated[bool, typer.Option("--print", help="Print it for a shell and stop.")]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON and stop.")]
Host = Annotated[str, typer.Option(help="Address of the HTTP server.")]
Port = Annotated[int, typer.Option(help="Port of the HTTP server.")]
Tp = Annotated[int, typer.Option(help="Tensor parallel size.")]
Experts = Annotated[bool, typer.Option("--expert-parallel/--no-expert-parallel", help="MoE only.")]
KvDtype = Annotated[str, typer.Option(help="Of the KV cache; the same on all pods.")]
MaxLen = Annotated[int, typer.Option(help="Tokens of the longest prompt with its answer.")]
Mtp = Annotated[int, typer.Option(help="Draft tokens of the model's own layer; 0 for none.")]
Backend = Annotated[str, typer.Option(help="NIXL's transport: LIBFABRIC (EFA) or UCX.")]
NixlHost = Annotated[str, typer.Option(help="Where other pods reach this one's NIXL.")]
NixlPort = Annotated[int, typer.Option(help="Its port.")]

_P = Prefill(model="-")
_D = Decode(model="-")


@app.command(context_settings=_PASS_ON)
def prefill(
    context: typer.Context,
    model: Model,
    print_: Print = False,
    as_json: Json = False,
    host: Host = _P.host,
    port: Port = _P.port,
    pcp: Annotated[int, typer.Option(help="Prefill context parallel size.")] = _P.pcp,
    tp: Tp = _P.tp,
    pp: Annotated[int, typer.Option(help="Pipeline parallel size.")] = _P.pp,
    dcp: Annotated[int, typer.Option(help="Decode context parallel size.")] = _P.dcp,
    expert_parallel: Experts = _P.expert_parallel,
    kv_cache_dtype: KvDtype = _P.kv_cache_dtype,
    max_model_len: MaxLen = _P.max_model_len,
    mtp_tokens: Mtp = _P.mtp_tokens,
    nixl: Annotated[
        bool, typer.Option("--nixl/--no-nixl", help="Hand the KV to decode pods.")
    ] = _P.nixl,
    nixl_backend: Backend = _P.nixl_backend,
    nixl_host: NixlHost = _P.nixl_host,
    nixl_port: NixlPort = _P.nixl_port,
    cpu: Annotated[bool, typer.Option("--cpu", help="vLLM runs on the CPU.")] = _P.cpu,
    mla: Annotated[
        bool | None,
        typer.Option(
            "--mla/--no-mla", help="The model has latent attention. Default: read its folder."
        ),
    ] = _P.mla,
    load_failure_policy: Annotated[
        str, typer.Option(help="What vLLM does with a load that fell short: fail or recompute.")
    ] = _P.load_failure_policy,
    remote_url: Annotated[
        str, typer.Option(help="L2; {rank} is each worker's rank. Empty for none.")
    ] = _P.remote_url,
    sharded: Annotated[
        bool, typer.Option("--sharded/--no-sharded", help="Each rank stores only its own chunks.")
    ] = _P.sharded,
    async_loading: Annotated[
        bool, typer.Option("--async-loading/--sync-loading", help="Load beside the engine's steps.")
    ] = _P.async_loading,
    chunk_size: Annotated[int, typer.Option(help="Tokens of a chunk.")] = _P.chunk_size,
    hash_algorithm: Annotated[str, typer.Option(help="Of chunk names.")] = _P.hash_algorithm,
    l1_gib: Annotated[
        float, typer.Option("--l1-gib", help="CPU memory of the whole pod for L1.")
    ] = _P.l1_gib,
    longest_prompt: Annotated[
        int, typer.Option(help="Tokens of the longest prompt to cache.")
    ] = _P.longest_prompt,
    bytes_per_token: Annotated[int, typer.Option(help="Of KV on one rank.")] = _P.bytes_per_token,
    resp_threads: Annotated[
        int, typer.Option(help="Connections of each rank to its Valkey.")
    ] = _P.resp_threads,
    blocking_timeout: Annotated[
        int, typer.Option(help="Seconds until a blocking load counts as failed.")
    ] = _P.blocking_timeout_s,
    lookup_timeout: Annotated[
        int, typer.Option(help="Milliseconds until a lookup counts as a miss.")
    ] = _P.lookup_timeout_ms,
    gpu_connector_v3: Annotated[
        bool, typer.Option("--gpu-connector-v3", help="LMCache's connector for layer groups.")
    ] = _P.gpu_connector_v3,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another LMCache setting; repeatable."),
    ] = None,
) -> None:
    """Start a prefill engine. Options after -- go to vLLM as they are.

    Ends with 14 if settings cannot work together, 10 if there is no vllm.
    """
    given = dict(locals())
    for name in ("context", "print_", "as_json", "assignments"):
        del given[name]
    given["blocking_timeout_s"] = given.pop("blocking_timeout")
    given["lookup_timeout_ms"] = given.pop("lookup_timeout")
    given["extra"] = parse_assignments(assignments or ())
    _start(pod(Prefill, **given, extra_args=tuple(context.args)), print_, as_json)


@app.command(context_settings=_PASS_ON)
def decode(
    context: typer.Context,
    model: Model,
    print_: Print = False,
    as_json: Json = False,
    host: Host = _D.host,
    port: Port = _D.port,
    tp: Tp = _D.tp,
    expert_parallel: Experts = _D.expert_parallel,
    kv_cache_dtype: KvDtype = _D.kv_cache_dtype,
    max_model_len: MaxLen = _D.max_model_len,
    mtp_tokens: Mtp = _D.mtp_tokens,
    nixl_backend: Backend = _D.nixl_backend,
    nixl_host: NixlHost = _D.nixl_host,
    nixl_port: NixlPort = _D.nixl_port,
) -> None:
    """Start a decode engine, which takes its KV over NIXL. Options after -- go to vLLM.

    Ends with 14 if settings cannot work together, 10 if there is no vllm.
    """
    given: dict[str, Any] = dict(locals())
    for name in ("context", "print_", "as_json"):
        del given[name]
    _start(pod(Decode, **given, extra_args=tuple(context.args)), print_, as_json)


def _start(chosen: Pod, print_: bool, as_json: bool) -> None:
    """Refuse, print, or become the engine."""
    raise_if_refused(chosen, os.environ)
    how = launch(chosen, os.environ)
    for limit in how.limits:
        say(f"note: {limit}")
    if as_json:
        typer.echo(how.json())
    elif print_:
        typer.echo(how.shell())
    else:
        become(how.command, how.environment, "run it in the image, or add --print")
