"""Where FlashInfer's activation lies in an unpacked wheel, and its part of the file."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import ConfigurationError

DATA = Path("flashinfer/data")
KERNELS = DATA / "csrc/fused_moe/trtllm_backend/trtllm_fused_moe_dev_kernel.cu"
HEADERS = DATA / "include/flashinfer/trtllm/fused_moe"
WORKSET = HEADERS / "ActivationWorkset.cuh"
# Stand in for headers that the activation includes and hardly uses.
STAND_IN = Path(__file__).with_name("kernel_include")


def activation_text(tree: Path) -> str:
    """Return the namespace of the activation as `tree` has it, unchanged, without the file's rest.

    Raises:
        ConfigurationError: the tree has no such file, or the file no such namespace.
    """
    path = tree / KERNELS
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as failure:
        raise ConfigurationError(
            f"{path}: expected FlashInfer's kernels, found none ({failure.strerror}); "
            "run `python build.py patch`"
        ) from failure
    first, last = "namespace activation {\n", "}  // namespace activation\n"
    start, end = text.find(first), text.find(last)
    if not 0 <= start < end:
        raise ConfigurationError(f"{path}: expected a namespace activation, found none")
    return f"namespace moe::dev {{\n{text[start:end]}{last}}}  // namespace moe::dev\n"


def include_options(tree: Path, *first: Path) -> list[str]:
    """Return the -I and -isystem options for the activation of `tree`, CUDA's own left away."""
    data = tree / DATA
    own = [*first, STAND_IN, data / "csrc/nv_internal", data / "csrc/nv_internal/include"]
    own += [data / "cccl" / name for name in ("cub", "libcudacxx/include", "thrust")]
    system = [data / "include", data / "csrc", data / "cutlass/include"]
    options = [f"-I{path}" for path in own]
    # As two words, which g++ and nvcc both take.
    for path in system:
        options += ["-isystem", str(path)]
    return options
