"""What cannot work together is refused before an engine is started, in one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.engine.settings import Decode, Pod, Prefill
from headrace.engine.settings_checks import CHECKS
from headrace.engine.settings_command import own_option
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
    for word in pod.extra_args:
        if own := own_option(word):
            yield Refusal(word, "an option of vLLM's alone after --", f"headrace's own {own}",
                          _instead(pod, own))  # fmt: skip


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
