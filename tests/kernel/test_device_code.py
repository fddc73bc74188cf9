"""The compile gate's judgement, on device code as cuobjdump prints it, and its stand-in headers."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from tests.kernel.compile_gate import judge
from tests.kernel.device_code import Kernel, read
from tests.kernel.gate_headers import EXPORT, LISTED, write_headers

NAMES = tuple(
    f"_ZN7workset{len(name)}{name}ILb{pdl}E"
    for name in ("activationDeepSeekWorksetKernel", "activationDeepSeekWorksetGateKernel")
    for pdl in (0, 1)
)
RELEASE = "_ZN10activation24activationDeepSeekKernelINS_12KernelParamsIN7cutlass12float_e4m3_tELi4E"
CODE = """
        /*0000*/                   LDC R1, c[0x0][0x37c] ;          /* 0x0000df00ff017b82 */
                                                                   /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ; /* 0x0000000402048981 */
        /*0020*/              @!P0 LDG.E.128 R8, desc[UR4][R2.64] ; /* 0x0000000402048981 */
        /*0030*/                   SHFL.BFLY PT, R5, R4, 0x4 ;      /* 0x0c801f0004057f89 */
        /*0040*/               @P1 STG.E.128 desc[UR4][R2.64], R4 ; /* 0x0000000402041986 */
        /*10050*/                  NOP ;                            /* 0x0000000000007918 */
"""


def kernels(code: str = CODE, usage: str = "REG:40 STACK:0 SHARED:0 LOCAL:0") -> list[Kernel]:
    names = (*NAMES, RELEASE)
    text = "".join(f" Function {name}:\n  {usage} CONSTANT[0]:1016\n" for name in names)
    sass = "arch = sm_103a\n" + "".join(f"\t\tFunction : {name}\n{code}" for name in names)
    return read(text, sass)


def test_instructions_are_read_with_and_without_predicates() -> None:
    (kernel, *_) = kernels()
    assert (kernel.arch, kernel.registers) == ("sm_103a", 40)
    assert kernel.count(r"LDG\.E\.128") == 2
    assert kernel.count("STG") == 1
    assert kernel.total == 5


def test_good_code_is_passed() -> None:
    assert judge(kernels()) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("LDG.E.128 R8", "LDG.E.64 R8", "found 1 and 1"),
        ("STG.E.128", "STG.E.U8", "accesses of one byte"),
        ("SHFL.BFLY PT, R5, R4, 0x4", "BAR.SYNC.DEFER_BLOCKING 0x0", "expected no barriers"),
        ("LDC R1", "STS [R1]", "shared memory"),
        ("LDC R1", "FFMA R1", "no FFMA"),
    ],
)
def test_other_instructions_are_found(old: str, new: str, finding: str) -> None:
    assert old in CODE
    assert any(finding in each for each in judge(kernels(CODE.replace(old, new))))


@pytest.mark.parametrize(
    ("usage", "finding"),
    [
        ("REG:41 STACK:0 SHARED:0 LOCAL:0", "at most 40 registers, found 41"),
        ("REG:40 STACK:8 SHARED:0 LOCAL:0", "spills"),
        ("REG:40 STACK:0 SHARED:0 LOCAL:8", "spills"),
        ("REG:40 STACK:0 SHARED:2048 LOCAL:0", "found 2048 bytes"),
    ],
)
def test_other_resources_are_found(usage: str, finding: str) -> None:
    assert any(finding in each for each in judge(kernels(usage=usage)))


def test_a_kernel_that_is_not_there_is_found() -> None:
    assert any("found 3" in each for each in judge(kernels()[1:]))


def test_the_headers_stand_in(tmp_path: Path) -> None:
    listing = (
        "namespace gemm {\nListLen = 12;\nlist tllmGenBatchedGemmList[] = {\n#ifndef EXCLUDE\n"
    )
    listing += "".join(f"{{nullptr, {number}\n }},\n" for number in range(12)) + "#endif\n};\n"
    listing += "} // namespace gemm\n"
    wheel = tmp_path / "cubin.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        root = "cubins/a/batched_gemm-1/include"
        archive.writestr(f"{root}/flashinferMetaInfo.h", listing)
        archive.writestr(
            f"{root}/trtllmGen_bmm_export/GemmGatedActOptions.h",
            "enum class ActType {\n  SwiGlu,\n  GeGlu,\n  // None\n  None,\n};\n",
        )
    write_headers(wheel, tmp_path / "headers")
    short = (tmp_path / "headers/flashinferMetaInfo.h").read_text()
    assert re.findall(r"nullptr, (\d+)", short) == [str(number) for number in range(LISTED)]
    assert f"ListLen = {LISTED};" in short
    assert short.count("#if") == short.count("#endif") == 1
    assert short.count("{") == short.count("}")
    assert short.endswith("};\n} // namespace gemm\n")
    options = tmp_path / "headers" / EXPORT / "trtllmGen_bmm_export/GemmGatedActOptions.h"
    assert re.search(r"GeGlu,\s+// None\s+SiTuGlu,\s+None,", options.read_text())


def test_a_wheel_without_headers_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "cubin.whl", "w"):
        pass
    with pytest.raises(ValueError, match="found none"):
        write_headers(tmp_path / "cubin.whl", tmp_path / "headers")
