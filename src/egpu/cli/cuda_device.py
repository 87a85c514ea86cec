"""A GPU through the driver API, as far as running an executor kernel needs it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from egpu.errors import DeviceFault, UnsupportedError

LIBRARY = "libcuda.so.1"
KERNEL = b"egpu_exec"
_BLOCK = 256  # threads
_STRIDE_ALIGNMENT = 16
_LOG_BYTES = 8192
# CUjit_option (cuda.h)
_JIT_ERROR_LOG_BUFFER = 5
_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6

_Pointer = ctypes.c_uint64


def run_executor(ptx: str, memories: Sequence[bytearray]) -> list[int]:
    """Run ``compile_executor_ptx``'s kernel on device 0, one thread per memory block.

    Gives each thread's r0 and changes the blocks in place; all blocks have one size.  Raises
    UnsupportedError without a driver, a device or a fitting compiler in the driver, DeviceFault if
    the kernel faults.
    """
    if not memories:
        return []
    size = len(memories[0])
    if any(len(memory) != size for memory in memories):
        raise ValueError("memory blocks of different sizes")
    stride = -(-max(size, 1) // _STRIDE_ALIGNMENT) * _STRIDE_ALIGNMENT
    block = bytearray(stride * len(memories))
    for index, memory in enumerate(memories):
        block[index * stride : index * stride + size] = memory
    driver = _Driver()
    with driver.context(), driver.kernel(ptx) as kernel:
        results = _launch(driver, kernel, block, stride, len(memories))
    for index, memory in enumerate(memories):
        memory[:] = block[index * stride : index * stride + size]
    return results


def _launch(
    driver: _Driver, kernel: ctypes.c_void_p, block: bytearray, stride: int, count: int
) -> list[int]:
    results = (ctypes.c_uint64 * count)()
    with driver.memory(len(block)) as data, driver.memory(8 * count) as out:
        view = (ctypes.c_char * len(block)).from_buffer(block)
        driver.call("cuMemcpyHtoD_v2", data, view, ctypes.c_size_t(len(block)))
        arguments = [data, _Pointer(stride), out, _Pointer(count)]
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.byref(item), ctypes.c_void_p) for item in arguments)
        )
        threads = min(count, _BLOCK)
        grid, block_shape = (-(-count // threads), 1, 1), (threads, 1, 1)
        driver.call("cuLaunchKernel", kernel, *grid, *block_shape, 0, None, pointers, None)
        driver.call("cuCtxSynchronize")
        driver.call("cuMemcpyDtoH_v2", view, data, ctypes.c_size_t(len(block)))
        driver.call("cuMemcpyDtoH_v2", results, out, ctypes.c_size_t(8 * count))
        del view  # gives the bytearray back
    return list(results)


class _Driver:
    """libcuda, with every result checked."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise UnsupportedError(
                f"the cuda executor ({error})", needs="an NVIDIA driver and a GPU"
            ) from error
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a driver function; its error becomes UnsupportedError or DeviceFault."""
        code = getattr(self._library, name)(*arguments)
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        message = f"{name}: {(text.value or b'error').decode()} ({code})"
        if name in ("cuCtxSynchronize", "cuMemcpyDtoH_v2"):
            raise DeviceFault(message, kernel=KERNEL.decode())
        raise UnsupportedError(f"the cuda executor ({message})", needs="a working GPU")

    @contextmanager
    def context(self) -> Iterator[None]:
        """Device 0's primary context, current on this thread."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self.call("cuCtxSetCurrent", context)
            yield
        finally:
            # After a fault this answers with the same fault, which was reported where it happened.
            self._library.cuDevicePrimaryCtxRelease_v2(device)

    @contextmanager
    def kernel(self, ptx: str) -> Iterator[ctypes.c_void_p]:
        """The executor kernel of ``ptx``, compiled by the driver."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        image = ctypes.c_char_p(ptx.encode() + b"\0")
        code = self._library.cuModuleLoadDataEx(ctypes.byref(module), image, 2, options, values)
        if code:
            said = log.value.decode(errors="replace").strip().splitlines()
            raise UnsupportedError(
                f"the cuda executor (the driver refuses the PTX, error {code}: "
                f"{said[0] if said else 'no message'})",
                needs="a GPU of sm_70 or later and a driver that knows this PTX version",
            )
        try:
            self.call("cuModuleGetFunction", ctypes.byref(function), module, KERNEL)
            yield function
        finally:
            self._library.cuModuleUnload(module)

    @contextmanager
    def memory(self, size: int) -> Iterator[ctypes.c_uint64]:
        """Device memory."""
        pointer = _Pointer()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        try:
            yield pointer
        finally:
            self._library.cuMemFree_v2(pointer)
