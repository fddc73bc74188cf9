"""How much of this machine a compile may take."""

from __future__ import annotations

import os
from pathlib import Path

GIB = 1 << 30
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def jobs(memory_of_one: int) -> int:
    """Return how many compiles of `memory_of_one` bytes may run at a time: at least one."""
    return max(1, min(cores(), memory() // memory_of_one))


def cores() -> int:
    """Return the processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def memory(limit: Path = CGROUP_LIMIT) -> int:
    """Return the bytes of memory that this process may use: the machine's, or its container's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        allowed = limit.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(allowed)) if allowed.isdigit() else physical
