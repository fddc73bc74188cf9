"""The GPU of this machine, as its driver names it; nothing of CUDA needs to be installed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from headrace.errors import MachineError

# Compute capability → what nvcc calls it.
ARCHITECTURES = {(9, 0): "90a", (10, 0): "100a", (10, 3): "103a"}
_L2_BYTES, _MAJOR, _MINOR = 38, 75, 76
_NO_DEVICE = 100
_NEED = "this bench needs an NVIDIA GPU: SM90, SM100 or SM103 (H100/H200, B200, B300)"


@dataclass(frozen=True)
class Device:
    """The first GPU. `arch` is nvcc's name, e.g. "103a"."""

    name: str
    arch: str
    l2_bytes: int
    memory_bytes: int


def find_device(library: str = "libcuda.so.1") -> Device:
    """Return the first GPU.

    Raises:
        MachineError: there is no driver, no GPU, or one for which the kernel is not compiled.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        raise MachineError(f"{_NEED}; found no driver ({library})") from None
    count = ctypes.c_int()
    # Of eight GPUs behind switches, for one, none starts before the fabric manager has: 802.
    if (status := cuda.cuInit(0)) not in (0, _NO_DEVICE):
        raise MachineError(f"{_NEED}; found a driver that ends with CUDA error {status} (cuInit)")
    if status or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or not count.value:
        raise MachineError(f"{_NEED}; found a driver and no GPU")
    device = ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    capability = attribute(_MAJOR), attribute(_MINOR)
    title = name.value.decode(errors="replace")
    if capability not in ARCHITECTURES:
        raise MachineError(f"{_NEED}; found {title} (SM{capability[0]}{capability[1]})")
    return Device(title, ARCHITECTURES[capability], attribute(_L2_BYTES), memory.value)
