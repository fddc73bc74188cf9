"""Reads what a compiler made of kernels: registers, and which instructions there are."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kernel:
    """One kernel for one architecture.

    Attributes:
        name: mangled.
        registers: of a thread.
        stack, local: bytes of a thread; above zero, registers were spilt or arrays not resolved.
        shared: bytes of a block.
        instructions: how often each occurs, with all its modifiers, e.g. "LDG.E.128".
    """

    name: str
    arch: str
    registers: int
    stack: int
    local: int
    shared: int
    instructions: Counter[str]

    @property
    def total(self) -> int:
        """Instructions, without those that only fill up."""
        return sum(count for name, count in self.instructions.items() if name != "NOP")

    def count(self, pattern: str) -> int:
        """Count the instructions whose name `pattern` matches from its start."""
        return sum(n for name, n in self.instructions.items() if re.match(pattern, name))


_USAGE = re.compile(
    r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", re.MULTILINE
)
_ARCH = re.compile(r"arch = (sm_\w+)")
_INSTRUCTION = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)"
)


def read(usage: str, sass: str) -> list[Kernel]:
    """Read `cuobjdump -res-usage` and `cuobjdump -sass` of one object for one architecture."""
    code = {}
    for part in sass.split("Function : ")[1:]:
        name, _, text = part.partition("\n")
        code[name.strip()] = Counter(_INSTRUCTION.findall(text))
    arch = _ARCH.search(sass)
    return [
        Kernel(
            name, arch[1] if arch else "", int(registers), int(stack), int(local), int(shared),
            code.get(name, Counter()),
        )
        for name, registers, stack, shared, local in _USAGE.findall(usage)
    ]  # fmt: skip


def kernels_of(path: Path, tools: Path) -> list[Kernel]:
    """Return the kernels in an object, by the `cuobjdump` and `nvdisasm` in the folder `tools`."""

    def ask(option: str) -> str:
        done = subprocess.run(
            [tools / "cuobjdump", option, path], capture_output=True, text=True, check=True,
            env={"PATH": f"{tools}:/usr/bin:/bin"}, timeout=300,
        )  # fmt: skip
        return done.stdout + done.stderr

    return read(ask("-res-usage"), ask("-sass"))


def exports(path: Path) -> set[str]:
    """Return the symbols that an object defines for others, by binutils' nm."""
    done = subprocess.run(
        ["nm", "--extern-only", "--defined-only", path], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in done.stdout.splitlines() if line}
