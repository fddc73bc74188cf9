"""What cannot work together is refused before an engine is started, in one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.engine.settings import Decode, Pod, Prefill
from headrace.engine.settings_checks import CHECKS
from headrace.engine.settings_command import given, own_option
from headrace.engine.settings_numbers import number_refusals
from headrace.engine.settings_plan import Refusal, plan_of
from headrace.errors import SettingsError


def raise_if_refused(pod: Pod, inherited: Mapping[str, str]) -> None:
    """Check everything that is known before a start.

    Raises:
        SettingsError: with one line for each refusal.
    """
    refusals = list(_pod_refusals(pod))
    if isinstance(pod, Prefill):
        plan = plan_of(pod, inherited)
        numbers = list(number_refusals(plan))
        refusals += numbers or [refusal for check in CHECKS for refusal in check(plan)]
    if refusals:
        raise SettingsError("\n".join(map(str, refusals)))


def _pod_refusals(pod: Pod) -> Iterator[Refusal]:
    side = "decode" if isinstance(pod, Decode) else "prefill"
    if pod.extra_args and not pod.extra_args[0].startswith("-"):
        yield Refusal(
            "MODEL", "one word", f"{pod.extra_args[0]!r} behind it",
            f"write headrace serve {side} MODEL [OPTIONS] -- [OPTIONS OF VLLM]",
        )  # fmt: skip
    yield from _nixl_refusals(pod)
    for word in pod.extra_args:
        if word == "--":
            yield Refusal(word, "one", "two", "leave the second out")
            continue
        if own := own_option(word):
            yield Refusal(word, "an option of vLLM's alone after --", f"headrace's own {own}",
                          _instead(pod, own))  # fmt: skip


def _nixl_refusals(pod: Pod) -> Iterator[Refusal]:
    """NIXL listens once for each data parallel replica, at --nixl-port and the ports behind it."""
    if isinstance(pod, Prefill) and not pod.nixl:
        if pod.nixl_host:
            yield Refusal("--nixl-host", "none with --no-nixl", pod.nixl_host,
                          "leave one of the two out")  # fmt: skip
        return
    replicas = given(pod.extra_args, "--data-parallel-size", "-dp") or 1
    last = pod.nixl_port + replicas - 1
    if pod.nixl_port <= pod.port <= last:
        ports = f"{pod.nixl_port} to {last}" if replicas > 1 else str(pod.nixl_port)
        yield Refusal("--nixl-port", f"another port than --port ({pod.port})", ports,
                      "change one of the two")  # fmt: skip


# What headrace calls it, where that is not vLLM's name for it.
_OURS = {
    "--model": "MODEL",
    "--tensor-parallel-size": "--tp", "-tp": "--tp",
    "--pipeline-parallel-size": "--pp", "-pp": "--pp",
    "--prefill-context-parallel-size": "--pcp", "-pcp": "--pcp",
    "--decode-context-parallel-size": "--dcp", "-dcp": "--dcp",
    "--enable-expert-parallel": "--expert-parallel", "-ep": "--expert-parallel",
    "--no-enable-expert-parallel": "--no-expert-parallel",
    "--speculative-config": "--mtp-tokens", "-sc": "--mtp-tokens",
}  # fmt: skip


def _instead(pod: Pod, own: str) -> str:
    """Return what to write instead of vLLM's option `own`; for some there is nothing."""
    name = _OURS.get(own, own)
    field = name.removeprefix("--").removeprefix("no-").replace("-", "_").lower()
    return f"give {name} before --" if field in type(pod).model_fields else "leave it out"
