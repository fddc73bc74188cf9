"""Which GPU code a component's build is asked for, and whether it runs on SM103.

Each build has words of its own, and some turn a request into another one without a word, so a
request is judged by what becomes of it, before the first compile:
- vLLM's CMake files know no 10.3 from CUDA 13 on: they make 10.0f of it;
- FlashInfer puts the suffix "a" to a bare number from 9.0 on;
- code with the suffix "a" runs on no other GPU than its own, so 10.0a is not for SM103.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from headrace.pipeline.pins import Pin

DEVICE = 103

_CODE = re.compile(r"(sm|compute)_([0-9]{2,3})([af]?)")
_WORD = re.compile(r"([0-9]{1,2})\.([0-9])([af]?)(\+PTX)?")


@dataclass(frozen=True)
class Code:
    """GPU code as nvcc names it, e.g. "sm_103a".

    Attributes:
        kind: "sm" is machine code, "compute" is PTX, which a driver compiles.
        number: of the GPU that it is made for, e.g. 103.
        suffix: "a" for that GPU alone, "f" for its family, "" for what comes after it as well.
    """

    kind: Literal["sm", "compute"]
    number: int
    suffix: Literal["", "a", "f"] = ""

    def __str__(self) -> str:
        return f"{self.kind}_{self.number}{self.suffix}"

    def runs_on(self, device: int) -> bool:
        """Return whether a GPU of compute capability `device`, e.g. 103, runs this code."""
        if self.suffix == "a":
            return self.number == device
        family = self.number // 10 == device // 10
        if self.suffix == "f" or self.kind == "sm":
            return family and self.number <= device
        return self.number <= device


@dataclass(frozen=True)
class Fault:
    """Why a request cannot stand: what was expected, and what was found."""

    expected: str
    found: str


def parse_code(name: str) -> Code:
    """Parse a name such as "sm_103a" or "compute_100f".

    Raises:
        ValueError: it is no such name.
    """
    found = _CODE.fullmatch(name)
    if found is None:
        raise ValueError(f"expected GPU code such as sm_103a or compute_100f, found {name!r}")
    return Code(found[1], int(found[2]), found[3])  # type: ignore[arg-type]  # the pattern's words


def _torch(word: str) -> str:
    return word if re.fullmatch(r"\d+\.\da?(\+PTX)?", word) else ""


def _flashinfer(word: str) -> str:
    major = int(word.partition(".")[0])
    if word.endswith("+PTX"):
        return ""
    if word[-1].isdigit() and major >= 9:
        return f"{word}{'f' if word == '12.0' else 'a'}"
    return word


def _vllm(word: str) -> str:
    turned = {"10.3": "10.0f", "10.3a": "10.0f", "10.3f": "10.0f", "12.1": "12.0f"}
    return turned.get(word, word)


# What becomes of one word of a request, "" if the build does not know it.
BUILDS: dict[str, Callable[[str], str]] = {
    "lmcache": _torch,
    "flashinfer": _flashinfer,
    "vllm": _vllm,
}
# Between words, as each build splits them: it takes a second one, or one at an end, for a word.
BETWEEN = {"flashinfer": " "}
TORCH_BETWEEN = "[ ;]"


def request_fault(pin: Pin, device: int = DEVICE) -> Fault | None:
    """Return why the build of `pin` cannot be asked for `pin.compile_for`, None if it can.

    Every word of the request must give code that `device` runs, and the code that `device-code`
    promises must be among it.
    """
    build = BUILDS.get(pin.id)
    if build is None:
        return Fault(f"a component that is compiled, one of {', '.join(BUILDS)}", f"'{pin.id}'")
    if not pin.compile_for.strip():
        return Fault("an architecture such as 10.3a", "none")
    if not pin.device_code:
        return Fault("device-code beside it, which names what must come of it", "none")
    codes: list[Code] = []
    for word in _words(pin):
        turned = build(word) if _WORD.fullmatch(word) else ""
        if not turned:
            found = f"'{word}'" if word == pin.compile_for else f"'{word}' in '{pin.compile_for}'"
            return Fault(f"an architecture that the build of {pin.id} knows", found)
        if turned != word:
            wanted = f"an architecture that the build of {pin.id} takes as it is"
            return Fault(wanted, f"'{word}', of which it makes {turned} without a word")
        made = codes_of(word)
        if not any(code.runs_on(device) for code in made):
            return Fault(f"code that runs on SM{device}", f"'{word}', {_why_not(made[0], device)}")
        codes += made
    if not {str(code) for code in codes} & set(pin.device_code):
        wanted = f"a request for {' or '.join(pin.device_code)}, which device-code promises"
        return Fault(wanted, f"'{pin.compile_for}' for {', '.join(map(str, codes))}")
    return None


def codes_of(word: str) -> list[Code]:
    """Return what nvcc is asked for by one word that a build takes as it is.

    Raises:
        ValueError: it is no architecture.
    """
    found = _WORD.fullmatch(word)
    if found is None:
        raise ValueError(f"expected an architecture such as 10.3a, found {word!r}")
    name = f"{found[1]}{found[2]}{found[3]}"
    codes = [parse_code(f"sm_{name}")]
    return [*codes, parse_code(f"compute_{name}")] if found[4] else codes


def nvcc_fault(pin: Pin, release: tuple[int, int], known: Iterable[str]) -> Fault | None:
    """Return why an nvcc cannot compile `pin.compile_for`, None if it can.

    Args:
        release: of nvcc, e.g. (13, 0). Families came with 12.9.
        known: what `nvcc --list-gpu-arch` prints; suffixes are not listed there.
    """
    listed = set(known)
    for word in _words(pin):
        for code in codes_of(word):
            if f"compute_{code.number}" not in listed or (code.suffix == "f" and release < (12, 9)):
                wanted = f"an nvcc that knows compute_{code.number}{code.suffix}"
                return Fault(wanted, f"release {release[0]}.{release[1]}, which does not")
    return None


def _words(pin: Pin) -> list[str]:
    return re.split(BETWEEN.get(pin.id, TORCH_BETWEEN), pin.compile_for)


def _why_not(code: Code, device: int) -> str:
    if code.suffix == "a":
        return f"whose code runs on SM{code.number} alone"
    if code.number > device:
        return "a newer GPU's"
    return "an older GPU's"
