"""What a prefill or decode pod is asked to be: typed, with the defaults of the deployment.

Eight GPUs of one node hold a prompt's KV together (prefill context parallelism), NIXL hands it to
the decode pods, and LMCache keeps it in the pod's memory (L1) and in one Valkey for each rank (L2).
`settings_lmcache` turns this into LMCache's environment, `settings_command` into vLLM's command
line, and `settings_refusals` says what cannot work before an engine is started.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from headrace.errors import SettingsError

# 78 latent and 21 indexer tensors of GLM-5.3 in FP8, with those of the layer that drafts: bytes a
# token. A running engine logs its own number.
GLM_5_3_BYTES = 48_408

# A number above these is a slip: no pod has such memory, no rank needs as many connections.
MOST_GIB = 100_000
MOST_THREADS = 256

# CacheDType of vLLM 0.31.0, vllm/config/cache.py.
KvDtype = Literal[
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla",
    "nvfp4_ds_mla", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc",
    "turboquant_3bit_nc", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head",
    "nvfp4", "nvfp4_4over6",
]  # fmt: skip
NixlBackend = Literal["LIBFABRIC", "UCX"]


class Pod(BaseModel):
    """What both kinds of pod have. The two must agree on all of it but `tp`: NIXL compares.

    Attributes:
        model: a folder, or a name that vLLM can resolve.
        tp: tensor parallel size.
        mtp_tokens: tokens that the model's own draft layer proposes; 0 for no drafts.
        nixl_host: address at which other pods reach this one's NIXL; "" leaves vLLM's.
        extra_args: appended to vLLM's command line as they are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(min_length=1)
    # All addresses: a pod's own is not known beforehand.
    host: str = Field(default="0.0.0.0", pattern=r"^\S+$")  # noqa: S104
    port: int = Field(default=8000, ge=1, le=65535)
    tp: int = Field(default=1, ge=1)
    expert_parallel: bool = True
    kv_cache_dtype: KvDtype = "fp8"
    max_model_len: int = Field(default=204_800, ge=1)
    mtp_tokens: int = Field(default=0, ge=0)
    nixl_backend: NixlBackend = "LIBFABRIC"
    nixl_host: str = Field(default="", pattern=r"^\S*$")
    nixl_port: int = Field(default=5600, ge=1, le=65535)
    extra_args: tuple[str, ...] = ()


class Decode(Pod):
    """A pod that takes finished KV over NIXL and generates. It has no LMCache."""

    tp: int = Field(default=8, ge=1)


class Prefill(Pod):
    """A pod that reads prompts.

    Attributes:
        pcp: prefill context parallel size; each rank holds the whole prompt's KV.
        dcp: decode context parallel size; above 1 the ranks hold parts, and nothing here works.
        cpu: vLLM runs on the CPU, with headrace's connector for LMCache.
        nixl: hand the KV to decode pods; without, the pod answers by itself.
        mla: whether the model has multi-head latent attention; None to read it from its folder.
        remote_url: L2; "{rank}" is each worker's rank. "" for no L2.
        sharded: rank r stores and loads the chunks c with c mod W = r, and nothing else.
        l1_gib: CPU memory of the whole pod for L1; the sharded store gives each rank its part.
        longest_prompt: tokens of the longest prompt that is to be cached.
        bytes_per_token: of KV, all layers, one rank.
        resp_threads: connections of each rank to its Valkey.
        blocking_timeout_s: after which a blocking load counts as failed.
        lookup_timeout_ms: after which the scheduler takes a lookup for a miss.
        lookup_backoff_s: sleep of a pending lookup on the scheduler's thread; LMCache's own 0.01
            is half a second a step with fifty of them.
        extra: further LMCache settings by name, those under extra_config as "extra_config.NAME".
    """

    pcp: int = Field(default=8, ge=1)
    pp: int = Field(default=1, ge=1)
    dcp: int = Field(default=1, ge=1)
    nixl: bool = True
    cpu: bool = False
    mla: bool | None = None
    load_failure_policy: Literal["fail", "recompute"] = "fail"
    remote_url: str = "resp://valkey-lmcache-{rank}.vllm.svc.cluster.local:6379"
    sharded: bool = True
    async_loading: bool = True
    chunk_size: int = Field(default=256, ge=1)
    hash_algorithm: str = "sha256_cbor"
    l1_gib: float = Field(default=256.0, gt=0, le=MOST_GIB, allow_inf_nan=False)
    longest_prompt: int = Field(default=200_000, ge=1)
    bytes_per_token: int = Field(default=GLM_5_3_BYTES, ge=1)
    resp_threads: int = Field(default=32, ge=1, le=MOST_THREADS)
    blocking_timeout_s: int = Field(default=10, ge=1)
    lookup_timeout_ms: int = Field(default=3000, ge=1)
    lookup_backoff_s: float = Field(default=0.0005, gt=0, allow_inf_nan=False)
    gpu_connector_v3: bool = False
    extra: dict[str, Any] = Field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """W: the ranks of a replica that hold the same KV."""
        return self.pcp * self.tp


P = TypeVar("P", bound=Pod)


def pod(kind: type[P], **values: Any) -> P:
    """Return a pod from plain values.

    Raises:
        SettingsError: a value has another type or lies outside its range; one line for each.
    """
    try:
        return kind(**values)
    except ValidationError as invalid:
        side = kind.__name__.lower()
        raise SettingsError(
            "\n".join(
                f"{_option(error['loc'])}: expected {_expected(error)}, found {error['input']!r}; "
                f"see headrace serve {side} --help"
                for error in invalid.errors()
            )
        ) from invalid


# Options whose names the command shortens.
_SHORT = {"blocking_timeout_s": "blocking_timeout", "lookup_timeout_ms": "lookup_timeout"}
_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def _option(place: tuple[int | str, ...]) -> str:
    name = str(place[0])
    return "MODEL" if name == "model" else f"--{_SHORT.get(name, name).replace('_', '-')}"


def _expected(error: ErrorDetails) -> str:
    """Return what a value should have been, in our words where pydantic speaks of its own types."""
    limits = error.get("ctx", {})
    found = [f"{words} {limits[name]:g}" for name, words in _LIMITS.items() if name in limits]
    if found:
        return found[0]
    match error["type"]:
        case "literal_error":
            return str(limits["expected"])
        case "finite_number":
            return "a finite number"
        case "string_too_short":
            return "a name"
        case "string_pattern_mismatch":
            return "an address without white space"
    return error["msg"].removeprefix("Input should be ").lower()
