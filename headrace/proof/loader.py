"""`python -m headrace.proof.loader MODULE`: which compiled file FlashInfer would load, as JSON.

Run in a process of its own, because FlashInfer looks for what is installed once, when it is
imported. FLASHINFER_CUDA_ARCH_LIST names the GPU where there is none.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys


def ask(module: str) -> dict[str, object]:
    """Ask FlashInfer's own loader; nothing is loaded or compiled."""
    flashinfer = importlib.import_module("flashinfer")
    environment = importlib.import_module("flashinfer.jit.env")
    core = importlib.import_module("flashinfer.jit.core")
    # As FlashInfer makes it, but for the sources, whose list needs headers that are fetched.
    spec = core.gen_jit_spec(module, [])
    stock = importlib.util.find_spec("flashinfer_jit_cache")
    return {
        "package": str(flashinfer.__file__),
        "version": str(flashinfer.__version__),
        "loads": [str(path) for path in spec.get_library_paths()] if spec.is_aot else [],
        "compiles": str(spec.jit_library_path),
        "providers": len(environment.FLASHINFER_AOT_PROVIDERS),
        "stock": str(stock.origin) if stock else None,
    }


if __name__ == "__main__":
    # Whatever FlashInfer says while it is imported, the answer is the last line.
    sys.stdout.write(f"\n{json.dumps(ask(sys.argv[1]))}\n")
