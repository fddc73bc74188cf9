"""Wrong versions of the workset kernel, compiled side by side into one program.

Each names a piece of the header's text that must stand there exactly once, an expression in it, and
the expression that stands there instead while that mutant runs.
"""

from __future__ import annotations

from pathlib import Path

from headrace.bench.kernel_source import WORKSET
from tests.kernel import toolchain

# name: (text of the header, expression in it, expression instead)
MUTANTS: dict[str, tuple[str, str, str]] = {
    "reads padding": ("if (hasToken) {\n      Type const*", "hasToken", "true"),
    "writes padding": ("if (hasToken) {\n      *reinterpret", "hasToken", "true"),
    "ignores the limit": (
        "params.ctaIdxXyToMnLimit[tileIdx]",
        "params.ctaIdxXyToMnLimit[tileIdx]",
        "(tileIdx + 1) * params.tileTokensDim",
    ),
    "drops the last tile": ("(; tileIdx < numTiles;", "numTiles", "numTiles - 1"),
    "drops the last group of a tile": (
        "(params.tileTokensDim + NumRows - 1) / NumRows", "params.tileTokensDim + NumRows - 1",
        "params.tileTokensDim",
    ),
    "strides too far": ("tileIdx += tileStride,", "tileStride", "tileStride + 1"),
    "strides too far in a tile": ("groupInTile += groupStride)", "groupStride", "groupStride + 1"),
    "forgets the carry": ("tileIdx += 1;", "1", "0"),
    "steps over the end of a row": (
        "sfBlockIdx >= outputDim / NUM_ELTS_PER_SF", "sfBlockIdx", "sfBlockIdx - 1"
    ),
    "wrong stride of scales": ("sfStride * sfBlockIdx;", "sfStride", "sfStride - 1"),
    "scale of the wrong half": (
        "sfBlockIdx + outputDim / NUM_ELTS_PER_SF", "outputDim / NUM_ELTS_PER_SF", "0"
    ),
    "gate from the wrong half": ("rowPtr + outputDim", "outputDim", "0"),
    "halves exchanged": (
        "applyPlainGate(linearScale * xLinear[i], gluScale * xGlu[i])",
        "applyPlainGate(linearScale * xLinear[i], gluScale * xGlu[i])",
        "applyPlainGate(gluScale * xGlu[i], linearScale * xLinear[i])",
    ),
    "lanes overlap": (
        "laneInSf * NUM_ELTS_PER_LANE", "NUM_ELTS_PER_LANE", "NUM_ELTS_PER_LANE / 2"
    ),
    "mask leaves lanes out": ("0xffffffffu", "0xffffffffu", "0x000000ffu"),
    "drops a step of the shuffle": (
        "lanes = NUM_LANES_PER_SF / 2;", "NUM_LANES_PER_SF / 2", "NUM_LANES_PER_SF / 4"
    ),
    "shuffles between rows": (
        "lanes = NUM_LANES_PER_SF / 2;", "NUM_LANES_PER_SF / 2", "NUM_LANES_PER_SF"
    ),
    "padding lanes leave the warp": (
        "if (firstRow >= endRow)", "firstRow", "firstRow + rowInGroup"
    ),
    "sign counts in the maximum": ("fabsf(out[i])", "fabsf(out[i])", "out[i]"),
    "scale of zero": (
        "fmaxf(aMax / E4M3_MAX_VAL, std::numeric_limits<float>::min())",
        "fmaxf(aMax / E4M3_MAX_VAL, std::numeric_limits<float>::min())",
        "aMax / E4M3_MAX_VAL",
    ),
    "one scale for four rows": ("laneInSf == 0", "laneInSf", "laneIdx"),
    "gate of another expert": ("params.ctaIdxXyToBatchIdx[tileIdx]", "tileIdx", "0"),
    "clamps on one side": (
        "fmaxf(fminf(xLinear, gate.limit), -gate.limit)",
        "fmaxf(fminf(xLinear, gate.limit), -gate.limit)",
        "fminf(xLinear, gate.limit)",
    ),
    "does not wait for the kernel before it": (
        "    cudaGridDependencySynchronize();",
        "cudaGridDependencySynchronize()",
        "void()",
    ),
    "takes the workset without metadata": (
        "data.ctaIdxXyToMnLimit != nullptr && data.numNonExitingCtas != nullptr",
        "data.ctaIdxXyToMnLimit != nullptr && data.numNonExitingCtas != nullptr",
        "true",
    ),
    "takes rows that are not aligned": (
        "% sizeof(uint4) == 0", "sizeof(uint4)", "1"
    ),
    "starts more blocks than fit": (
        "(numResidentCtas / gridSizeX - 1) | 1", "numResidentCtas", "2 * numResidentCtas"
    ),
}  # fmt: skip


def mutate(header: str) -> str:
    """Return the header with all mutants in it; `simt::mutant` chooses, 0 is the right one.

    Raises:
        AssertionError: a mutant's text does not stand in the header exactly once.
    """
    pieces: dict[str, str] = {}
    for number, (name, (text, right, wrong)) in enumerate(MUTANTS.items(), 1):
        assert header.count(text) == 1, f"{name}: {text!r} stands there {header.count(text)} times"
        before, found, after = pieces.get(text, text).rpartition(right)
        assert found, f"{name}: {right!r} does not stand in {text!r}"
        choice = f"(simt::mutant == {number} ? ({wrong}) : ({right}))"
        pieces[text] = before + choice + after
    for text, instead in pieces.items():
        header = header.replace(text, instead)
    return header


def mutants_runner(tree: Path) -> Path:
    """Compile the program that holds all mutants."""
    return toolchain.runner(tree, mutate((tree / WORKSET).read_text()))
