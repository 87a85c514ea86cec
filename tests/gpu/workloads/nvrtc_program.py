"""The Python workload: cuda-bindings, PTX from NVRTC, launched through the driver API."""

import ctypes
import json
import sys

import numpy as np
from cuda.bindings import driver, nvrtc

SOURCE = rb"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, unsigned long long n) {
  unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
template <int N> __global__ void scaled(unsigned *out) {
  unsigned i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  if (i % 3 == 0) return;
  out[i] += N;
}
"""


def check(answer):
    error, *values = answer
    if int(error) != 0:
        sys.exit(f"nvrtc_program.py: {error!r}")
    return values[0] if len(values) == 1 else values


def compile_ptx(architecture):
    program = check(nvrtc.nvrtcCreateProgram(SOURCE, b"kernels.cu", 0, [], []))
    check(nvrtc.nvrtcAddNameExpression(program, b"scaled<5>"))
    options = [f"--gpu-architecture=compute_{architecture}".encode()]
    check(nvrtc.nvrtcCompileProgram(program, len(options), options))
    text = bytes(check(nvrtc.nvrtcGetPTXSize(program)))
    check(nvrtc.nvrtcGetPTX(program, text))
    return text, check(nvrtc.nvrtcGetLoweredName(program, b"scaled<5>"))


def main():
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    context = check(driver.cuDevicePrimaryCtxRetain(device))
    check(driver.cuCtxSetCurrent(context))
    text, scaled_name = compile_ptx(80)
    module = check(driver.cuModuleLoadData(text))
    saxpy = check(driver.cuModuleGetFunction(module, b"saxpy"))
    scaled = check(driver.cuModuleGetFunction(module, scaled_name))

    count, rounds = 100_000, 40
    x = np.arange(count, dtype=np.float32) % 128
    y = np.ones(count, dtype=np.float32)
    device_x, device_y = (check(driver.cuMemAlloc(x.nbytes)) for _ in range(2))
    check(driver.cuMemcpyHtoD(device_x, x.ctypes.data, x.nbytes))
    check(driver.cuMemcpyHtoD(device_y, y.ctypes.data, y.nbytes))
    blocks = (count + 255) // 256
    arguments = (
        (2.0, int(device_x), int(device_y), count),
        (ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
    )
    for _ in range(rounds):
        check(driver.cuLaunchKernel(saxpy, blocks, 1, 1, 256, 1, 1, 0, 0, arguments, 0))

    out = np.zeros(7 * 3 * 33, dtype=np.uint32)
    device_out = check(driver.cuMemAlloc(out.nbytes))
    check(driver.cuMemcpyHtoD(device_out, out.ctypes.data, out.nbytes))
    for _ in range(rounds):
        arguments = ((int(device_out),), (ctypes.c_void_p,))
        check(driver.cuLaunchKernel(scaled, 7, 3, 1, 33, 1, 1, 0, 0, arguments, 0))

    result = np.empty_like(y)
    check(driver.cuMemcpyDtoH(result.ctypes.data, device_y, y.nbytes))
    check(driver.cuMemcpyDtoH(out.ctypes.data, device_out, out.nbytes))
    wrong = int((result != 1 + 2 * rounds * x).sum())
    wrong += int((out != np.where(np.arange(out.size) % 3 == 0, 0, 5 * rounds)).sum())
    print(
        json.dumps(
            {
                "digest": f"{int(result.sum(dtype=np.float64)):x}-{int(out.sum()):x}",
                "wrong": wrong,
                "kernels": {
                    "saxpy": {
                        "launches": rounds,
                        "blocks": rounds * blocks,
                        "threads": rounds * blocks * 256,
                    },
                    scaled_name.decode(): {
                        "launches": rounds,
                        "blocks": rounds * 21,
                        "threads": rounds * 21 * 33,
                    },
                },
            }
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
