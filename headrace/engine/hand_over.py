"""Which words of `headrace serve` are vLLM's, and how this process becomes vLLM's.

The image's command is `headrace serve`, and stands in for `vllm serve`. So next to nothing is
imported here, and no process stays between the caller's signals and vLLM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from headrace.errors import ConfigurationError, KernelModuleError, MachineError

ROLES = ("prefill", "decode")
HELP = ("--help", "-h")
# The options of the roles, written out: the modules that define them take seconds to import.
FLAGS = frozenset(
    {
        "--print", "--json", "--expert-parallel", "--no-expert-parallel", "--nixl", "--no-nixl",
        "--cpu", "--mla", "--no-mla", "--sharded", "--no-sharded", "--async-loading",
        "--sync-loading", "--gpu-connector-v3",
    }
)  # fmt: skip
VALUED = frozenset(
    {
        "--host", "--port", "--pcp", "--tp", "--pp", "--dcp", "--kv-cache-dtype",
        "--max-model-len", "--mtp-tokens", "--nixl-backend", "--nixl-host", "--nixl-port",
        "--load-failure-policy", "--remote-url", "--chunk-size", "--hash-algorithm", "--l1-gib",
        "--longest-prompt", "--bytes-per-token", "--resp-threads", "--blocking-timeout",
        "--lookup-timeout", "--set",
    }
)  # fmt: skip
# Where a FlashInfer says which module it must load; written out, as the reader takes a while too.
RECORD = "flashinfer/data/headrace-module.json"
# Set to its mode by an image that has such a record: another FlashInfer on top brings none.
MODE = "HEADRACE_KERNEL_MODULE"
# Of difflib: a role with one letter wrong, missing, added or moved has a ratio of 0.83 or more.
_ALIKE = 0.82


def hand_over(words: Sequence[str]) -> None:
    """Become `vllm serve` with `words` as they are, unless they are headrace's own.

    Returns if the first word is a role, or the only one asks for help.

    Raises:
        ConfigurationError: the first word looks like a role and is not one, nor a folder, or a
            role stands behind headrace's own options.
        MachineError: there is no vllm.
    """
    first = words[0] if words else ""
    if first in ROLES or (first in HELP and len(words) == 1):
        return
    # An option or a path is none; nor is a name of a hub, which has its owner in it.
    if not first.startswith("-") and "/" not in first:
        _refuse_slip(first)
    _refuse_late_role(words)
    become(("vllm", "serve", *words), {}, "run it in the image, or see headrace serve --help")


def become(command: tuple[str, ...], environment: Mapping[str, str], advice: str) -> None:
    """Replace this process by `command`, with `environment` added to what is there.

    Args:
        advice: what the caller can do if the program does not exist.

    Raises:
        KernelModuleError: this environment has a record of FlashInfer's module, and it is another.
        MachineError: it does not exist, or cannot be run.
    """
    _require_recorded_module()
    try:
        # No shell, and PATH decides, as it does for docker.
        os.execvpe(command[0], command, {**os.environ, **environment})  # noqa: S606
    except FileNotFoundError as missing:
        raise MachineError(f"couldn't find '{command[0]}' in PATH; {advice}") from missing
    except OSError as failure:
        raise MachineError(f"couldn't start '{command[0]}': {failure.strerror}") from failure


def _require_recorded_module() -> None:
    """Check FlashInfer's module where there is a record of it, or must be one.

    Raises:
        KernelModuleError: it is not the recorded one, or the image's record is gone.
    """
    mode = os.environ.get(MODE, "")
    for folder in sys.path:
        if os.path.exists(f"{folder}/{RECORD}"):  # noqa: PTH110
            # Imported here: where there is no record, nothing takes time.
            from pathlib import Path

            from headrace.engine.kernel_check import report_module

            report_module(Path(folder), mode)
            return
    if mode:
        raise KernelModuleError(
            f"{MODE}={mode}: expected {RECORD} in a folder of sys.path, found none; "
            "start the image as it was published"
        )


def _refuse_late_role(words: Sequence[str]) -> None:
    """Raise ConfigurationError if a role follows headrace's options; vLLM would load it.

    Of any other option nothing here knows how many words it takes, so a role behind one may be
    its value: all of that is vLLM's.
    """
    rest = iter(words)
    for word in rest:
        if word in ROLES:
            raise ConfigurationError(
                f"serve: expected {word} as the first word, found it behind {words[0]}; "
                f"write the role first, or --model {word} for a model of that name"
            )
        name, equals, _ = word.partition("=")
        if name in VALUED:
            if not equals:
                next(rest, None)
        elif word not in FLAGS:
            return


def _refuse_slip(word: str) -> None:
    """Raise ConfigurationError if `word` was meant as a role; vLLM would look for such a model."""
    # Imported here: they take as long as Python itself, and no path and no option needs them.
    import difflib
    from pathlib import Path

    alike = difflib.get_close_matches(word.lower(), ROLES, n=1, cutoff=_ALIKE)
    if alike and not Path(word).is_dir():
        raise ConfigurationError(
            f"serve: expected prefill, decode or a model, found {word!r}, which is no folder; "
            f"write {alike[0]}, or --model {word} for a model of that name"
        )
