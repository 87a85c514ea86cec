"""An empty kernel, launched so often and in such a grid: what directly run programs are put into.

    python -m egpu.loader.carrier KERNEL COUNT GX GY GZ BX BY BZ

A process of its own, because it is a workload like any other: the agent is in it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

_PTX = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry %s()\n{\n  ret;\n}\n"


class _Driver:
    """libcuda; SystemExit with one line for every call that fails."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise SystemExit(f"egpu: no CUDA driver ({error})") from error

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise SystemExit(f"egpu: {name}: {(text.value or b'error').decode()} ({code})")


def launch(kernel: str, count: int, shape: Sequence[int]) -> None:
    """Launch an empty kernel ``count`` times on device 0; ``shape`` is grid and block."""
    call = _Driver()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p((_PTX % kernel).encode()))
    call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
    for _ in range(count):
        call("cuLaunchKernel", function, *shape, 0, None, None, None)
        call("cuCtxSynchronize")


if __name__ == "__main__":
    launch(sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3:9]])
