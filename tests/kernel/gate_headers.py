"""Stand-in for the headers of flashinfer-cubin 0.7.0.post1, which is not on the Python index.

The newest release there, 0.6.13, has all of them, in an earlier state: what the sources of 0.7.0
need besides is added, and the list of 2108 GEMM kernels is cut short, since it takes minutes to
compile. What is compiled with these headers is looked at and thrown away: it belongs to no set of
GEMM kernels that exists.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path, PurePosixPath

EXPORT = "flashinfer/trtllm/batched_gemm"
LISTED = 8


def write_headers(wheel: Path, folder: Path) -> None:
    """Write the headers that the fused MoE module includes, from the wheel, below `folder`.

    Raises:
        ValueError: the wheel does not have them, or not as expected.
    """
    written = 0
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, path = name.partition("/include/")
            if "/batched_gemm-" not in name or not found or not path.endswith(".h"):
                continue
            text = archive.read(name).decode()
            if path == "flashinferMetaInfo.h":
                target, text = folder / path, _shortened(text)
            else:
                target = folder / EXPORT / path
            if PurePosixPath(path).name == "GemmGatedActOptions.h":
                text = _with_later_activation(text)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            written += 1
    if written == 0:
        raise ValueError(f"{wheel}: expected headers of batched_gemm, found none")
    # Included by cudaUtils.h; nothing of cuBLAS is used.
    for name in ("cublasLt.h", "cublas_v2.h"):
        (folder / name).write_text("#pragma once\n")


def _with_later_activation(text: str) -> str:
    text, changed = re.subn(r"(\n\s*)None,(\s*\n\};)", r"\1SiTuGlu,\1None,\2", text, count=1)
    if changed != 1:
        raise ValueError("GemmGatedActOptions.h: expected ActType to end with None")
    return text


def _shortened(text: str) -> str:
    start = text.index("tllmGenBatchedGemmList[] = {")
    listed, end, after = text[start:].partition("\n};\n")
    head, first, entries = listed.partition("\n{")
    kept = entries.split("\n{")[:LISTED]
    if not first or not end or len(kept) < LISTED:
        raise ValueError(f"flashinferMetaInfo.h: expected at least {LISTED} kernels")
    # Each entry ends with its own comma, and the last one with the end of a condition.
    opened = head.count("#ifndef") + "\n{".join(kept).count("#if")
    closed = "\n{".join(kept).count("#endif")
    before = re.sub(r"(ListLen = )\d+", rf"\g<1>{LISTED}", text[:start])
    ends = "#endif\n" * (opened - closed)
    return f"{before}{head}\n{{" + "\n{".join(kept) + f"\n{ends}}};\n{after}"


if __name__ == "__main__":
    write_headers(Path(sys.argv[1]), Path(sys.argv[2]))
