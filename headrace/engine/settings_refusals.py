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
            yield Refusal(
                word, f"an option that headrace does not write itself, as it does {own}",
                f"{word!r} after --", f"use the options of headrace serve {side}",
            )  # fmt: skip
