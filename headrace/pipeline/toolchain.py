"""The compiler that an image may hold: by flavor, and only that of its locked packages.

An engine that compiles at its first start needs one. Everything here is a file of a locked Debian
package or wheel at the place where that puts it, and must be there; whatever lies beside it is not
meant to be in the image.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.pipeline.layer_rules import Kind

CUDA = r".*/site-packages/nvidia/cu13/"
GCC = r"usr/lib/gcc/x86_64-linux-gnu/12/"
NAMED = r"usr/bin/(?:x86_64-linux-gnu-)?"

# (rule that is broken, pattern of the path in the image) → why.
TOOLCHAIN: Mapping[str, Mapping[tuple[Kind, str], str]] = {
    "cpu": {},
    "sm103": {
        ("compiler", CUDA + r"(?:bin/(?:nvcc|cudafe\+\+|ptxas)|nvvm/bin/cicc)"): (
            "nvcc, with which FlashInfer compiles at the first start"
        ),
        ("compiler", r".*/site-packages/(?:tokenspeed_)?triton/backends/nvidia/bin/ptxas"): (
            "the assembler of Triton's kernels"
        ),
        ("compiler", NAMED + r"(?:gcc|g\+\+|cpp)(?:-12)?|usr/bin/(?:cc|c\+\+|c89|c99)"): (
            "Debian's C++ compiler, which nvcc and Triton call"
        ),
        ("compiler", GCC + "(?:cc1|cc1plus|collect2|lto1|lto-wrapper)"): (
            "the parts of Debian's C++ compiler"
        ),
        ("compiler", NAMED + r"(?:as|ld|ld\.bfd|ld\.gold|gold|ar|ranlib)"): (
            "the assembler and linker that Debian's compiler calls"
        ),
        ("build remains", r"usr/lib/x86_64-linux-gnu/(?:[MSgr]|gr)?crt[1in]\.o"): (
            "what Debian's C library links into programs"
        ),
        ("build remains", GCC + r"(?:crt\w+|lib[alt]san_preinit)\.o"): (
            "what Debian's compiler links into programs"
        ),
        ("build remains", r"usr/lib/python3\.11/config-3\.11-x86_64-linux-gnu/python\.o"): (
            "a part of Debian's libpython3-dev, whose headers Triton includes"
        ),
    },
}
