"""Compiles share the cores and the memory that this process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline import machine
from headrace.pipeline.machine import GIB


@pytest.mark.parametrize(
    ("cores", "memory", "one", "jobs"),
    [(2, 24 * GIB, 3 * GIB, 2), (64, 24 * GIB, 3 * GIB, 8), (2, 2 * GIB, 3 * GIB, 1)],
)
def test_the_scarcer_of_both_counts(
    monkeypatch: pytest.MonkeyPatch, cores: int, memory: int, one: int, jobs: int
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setattr(machine, "memory", lambda: memory)
    assert machine.jobs(one) == jobs


def test_a_container_may_have_less_than_the_machine(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    physical = machine.memory(limit)
    limit.write_text("max\n")
    assert machine.memory(limit) == physical
    limit.write_text(f"{GIB}\n")
    assert machine.memory(limit) == GIB
    limit.write_text(f"{physical * 2}\n")
    assert machine.memory(limit) == physical
