"""A workload that launches kernels when it is told to: one line in, one line out.

    stepper.py COMMANDS ANSWERS

``COMMANDS`` and ``ANSWERS`` are named pipes.  ``KERNEL GRID BLOCK`` launches once and waits;
``start KERNEL GRID BLOCK TIMES`` launches so often on the kernel's own stream, ``wait`` waits for
all of it; ``new`` makes another context and goes on in it; ``nothing`` does nothing.
"""

import ctypes
import sys

PTX = """
.version 6.2
.target sm_70
.address_size 64
.visible .entry {name}(.param .u64 a, .param .u32 n)
{{
    ret;
}}
"""
KERNELS = ("first", "second")
NON_BLOCKING = 1


def call(function, *arguments):
    result = function(*arguments)
    if result:
        raise RuntimeError(f"{function.__name__}: {result}")


class Context:
    """A context with its kernels, each with a stream of its own."""

    def __init__(self, cuda):
        self._cuda = cuda
        self._handle = ctypes.c_void_p()
        call(cuda.cuCtxCreate_v2, ctypes.byref(self._handle), 0, 0)
        self._kernels = {name: self._load(name) for name in KERNELS}
        self._streams = {name: self._stream() for name in KERNELS}

    def _load(self, name):
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        text = PTX.format(name=name).encode() + b"\0"
        call(self._cuda.cuModuleLoadData, ctypes.byref(module), text)
        call(self._cuda.cuModuleGetFunction, ctypes.byref(kernel), module, name.encode())
        return kernel

    def _stream(self):
        stream = ctypes.c_void_p()
        call(self._cuda.cuStreamCreate, ctypes.byref(stream), NON_BLOCKING)
        return stream

    def launch(self, name, grid, block):
        a, n = ctypes.c_uint64(7), ctypes.c_uint32(grid * block & 0xFFFFFFFF)
        params = (ctypes.c_void_p * 2)(ctypes.addressof(a), ctypes.addressof(n))
        shape = (grid, 1, 1, block, 1, 1)
        kernel, stream = self._kernels[name], self._streams[name]
        call(self._cuda.cuLaunchKernel, kernel, *shape, 0, stream, params, None)

    def wait(self):
        call(self._cuda.cuCtxSynchronize)


def main(commands, answers):
    cuda = ctypes.CDLL("libcuda.so.1")
    call(cuda.cuInit, 0)
    context = Context(cuda)
    with open(commands) as lines, open(answers, "w") as out:
        for line in lines:
            match line.split():
                case ["new"]:
                    context = Context(cuda)
                case ["wait"]:
                    context.wait()
                case ["start", name, grid, block, times]:
                    for _ in range(int(times)):
                        context.launch(name, int(grid), int(block))
                case [name, grid, block]:
                    context.launch(name, int(grid), int(block))
                    context.wait()
            out.write("done\n")
            out.flush()


main(*sys.argv[1:])
