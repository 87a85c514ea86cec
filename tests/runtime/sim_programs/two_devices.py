"""Two devices in one process: a thread for each, then one thread that goes from one to the other.

Prints what each device was given, by kernel: {"kernel": [[threads, blocks] of each device]}.
"""

import ctypes
import json
import sys
import threading

PTX = b"""
.version 7.8
.target sm_70
.address_size 64
.global .u32 hits;
.visible .entry fill(.param .u64 data, .param .u32 n, .param .u32 value)
{
.reg .pred %p; .reg .b32 %r<6>; .reg .b64 %a<4>;
ld.param.u64 %a1, [data]; ld.param.u32 %r1, [n]; ld.param.u32 %r5, [value];
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
mad.lo.u32 %r2, %r2, %r3, %r4;
setp.ge.u32 %p, %r2, %r1;
@%p ret;
mul.wide.u32 %a2, %r2, 4;
add.s64 %a1, %a1, %a2;
st.global.u32 [%a1], %r5;
mov.u64 %a3, hits;
atom.global.add.u32 %r4, [%a3], 1;
ret;
}
.visible .entry idle() { ret; }
\0"""
SIZE = 300

driver = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(driver, name)(*arguments)
    if result:
        sys.exit(f"{name}: {result}")


class Device:
    """A device with its context, module and buffer; contexts are current per thread."""

    def __init__(self, number):
        self.number = number
        self.given = {"fill": [0, 0], "idle": [0, 0]}
        self.hits = 0
        self.context, self.module = ctypes.c_void_p(), ctypes.c_void_p()
        self.data = ctypes.c_uint64()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), number)
        self.enter()
        call("cuModuleLoadData", ctypes.byref(self.module), PTX)
        call("cuMemAlloc_v2", ctypes.byref(self.data), 4 * SIZE)
        self.functions = {}
        for kernel in self.given:
            function = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel.encode())
            self.functions[kernel] = function

    def enter(self):
        call("cuCtxSetCurrent", self.context)

    def launch(self, kernel, grid, block):
        values = (self.data, ctypes.c_uint32(SIZE), ctypes.c_uint32(self.number + 7))
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in values))
        arguments = pointers if kernel == "fill" else None
        shape = (grid, 1, 1, block, 1, 1, 0)
        call("cuLaunchKernel", self.functions[kernel], *shape, None, arguments, None)
        self.given[kernel][0] += grid * block
        self.given[kernel][1] += grid
        if kernel == "fill":
            self.hits += min(grid * block, SIZE)

    def check(self):
        """What was written, and how often the module's own variable was counted up."""
        found = (ctypes.c_uint32 * SIZE)()
        call("cuMemcpyDtoH_v2", found, self.data, 4 * SIZE)
        address, size, hits = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint32()
        call(
            "cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), self.module, b"hits"
        )
        call("cuMemcpyDtoH_v2", ctypes.byref(hits), address, 4)
        return list(found) == [self.number + 7] * SIZE and hits.value == self.hits


def busy(device):
    device.enter()
    for turn in range(4 + 3 * device.number):
        device.launch("fill", 8 + turn, 33 + device.number)
        device.launch("idle", 2, 64)


def main():
    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    devices = [Device(number) for number in range(count.value)]
    threads = [threading.Thread(target=busy, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for turn in range(7):
        device = devices[turn % len(devices)]
        device.enter()
        device.launch("fill", 9 + turn, 40)
        call("cuCtxSynchronize")
    right = True
    for device in devices:
        device.enter()
        right = right and device.check()
    rows = {kernel: [device.given[kernel] for device in devices] for kernel in ("fill", "idle")}
    print(json.dumps({"right": right, "given": rows}))


main()
