"""Which checks and suites prove an image of which flavor, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.pipeline import proofs, proofs_sm103
from headrace.pipeline.proofs_device import device_code
from headrace.pipeline.proofs_module import kernel_module
from headrace.pipeline.subject import Subject

Check = Callable[[Subject], str]
# The words after `headrace` that run a suite in the image of a digest. It writes results.jsonl and
# junit.xml to /report.
Words = Callable[[str], Sequence[str]]


def missing_key(digest: str) -> Sequence[str]:
    """Return the words for every reply that a server may give for a key that is not there."""
    return ("missing-key", "--out", "/report")


def needle(digest: str) -> Sequence[str]:
    """Return the words for all four states up to 4,000 tokens, and 16,384 cold and from L2.

    The seed follows from the digest: other images are asked other prompts, and one image the same
    ones again.
    """
    return (
        "needle", "--private", "--out", "/report", "--image", digest,
        "--seed", str(int(digest[-8:], 16)), "--lengths", "1100,2300,4000",
        "--depths", "0,25,50,75,100", "--brief", "16384",
    )  # fmt: skip


CHECKS: Mapping[str, Mapping[str, Check]] = {
    "cpu": proofs.CHECKS,
    "sm103": {
        **proofs_sm103.CHECKS,
        "device-code": device_code,
        "kernel-module": kernel_module,
    },
}
# Of each flavor the second takes minutes, and the first finds most faults.
SUITES: Mapping[str, Mapping[str, Words]] = {
    "cpu": {"missing-key": missing_key, "needle": needle},
    "sm103": {"missing-key": missing_key, "needle": proofs_sm103.needle},
}
# Suites whose results `verify` takes, because they need an engine that it cannot start.
GIVEN: Mapping[str, Sequence[str]] = {"cpu": (), "sm103": ("needle",)}
