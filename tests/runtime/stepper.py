"""A workload that launches kernels when it is told to: one line in, one line out.

    stepper.py COMMANDS ANSWERS

``COMMANDS`` and ``ANSWERS`` are named pipes.  ``KERNEL GRID BLOCK`` launches once and waits;
``new`` makes another context and goes on in it; ``nothing`` does nothing.
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


def call(function, *arguments):
    result = function(*arguments)
    if result:
        raise RuntimeError(f"{function.__name__}: {result}")


def context(cuda):
    made = ctypes.c_void_p()
    call(cuda.cuCtxCreate_v2, ctypes.byref(made), 0, 0)
    found = {}
    for name in KERNELS:
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        text = PTX.format(name=name).encode() + b"\0"
        call(cuda.cuModuleLoadData, ctypes.byref(module), text)
        call(cuda.cuModuleGetFunction, ctypes.byref(kernel), module, name.encode())
        found[name] = kernel
    return found


def main(commands, answers):
    cuda = ctypes.CDLL("libcuda.so.1")
    call(cuda.cuInit, 0)
    kernels = context(cuda)
    with open(commands) as lines, open(answers, "w") as out:
        for line in lines:
            words = line.split()
            if words == ["new"]:
                kernels = context(cuda)
            elif words != ["nothing"]:
                name, grid, block = words[0], int(words[1]), int(words[2])
                a, n = ctypes.c_uint64(7), ctypes.c_uint32(grid * block)
                params = (ctypes.c_void_p * 2)(ctypes.addressof(a), ctypes.addressof(n))
                shape = (grid, 1, 1, block, 1, 1)
                call(cuda.cuLaunchKernel, kernels[name], *shape, 0, None, params, None)
                call(cuda.cuCtxSynchronize)
            out.write("done\n")
            out.flush()


main(*sys.argv[1:])
