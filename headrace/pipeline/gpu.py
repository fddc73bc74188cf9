"""The GPUs of this machine, as its driver names them."""

from __future__ import annotations

from headrace.console import call
from headrace.errors import MachineError
from headrace.pipeline.subject import UnprovedError

QUERY = ("nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader")
QUERY_S = 60.0
ADVICE = "run 'build.py verify' on a machine with a GPU and docker's NVIDIA runtime"


def require_gpu(capability: str) -> str:
    """Return the name of this machine's GPUs, which all have the compute capability.

    Raises:
        UnprovedError: there is none, or another one: what it runs is not what the image is for.
    """
    try:
        listed = call(QUERY, error=MachineError, timeout=QUERY_S)
    except MachineError as none:
        raise UnprovedError(
            f"an engine of this flavor needs a GPU, found none ({none}); {ADVICE}"
        ) from none
    found = [line.strip() for line in listed.splitlines() if line.strip()]
    if not found or any(line.partition(",")[0] != capability for line in found):
        raise UnprovedError(
            f"expected GPUs of compute capability {capability}, found "
            f"{'; '.join(found) or 'none'}; {ADVICE}"
        )
    return found[0].partition(",")[2].strip()
