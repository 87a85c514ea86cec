"""A workload that gets device memory in every way and lets a kernel look at it before and after.

    memory_kinds.py [--threads N] [--rounds N]

The kernel itself reads nothing.  Prints, for each look, what a probe that reads must count:
{"looks": {name: {"which": number, "threads": n, "read": n, "sum": n}}, "left_out": {name: why}}.
A read or a sum that is null may be anything (memory goes meanwhile); every thread still counts.
It uses the driver alone, so it runs on the simulated device, too.
"""

import argparse
import ctypes
import json
import sys
import time

PTX = b"""
.version 7.8
.target sm_70
.address_size 64
.visible .entry look(.param .u64 address, .param .u32 n, .param .u32 which) { ret; }
\0"""
NOT_SUPPORTED, INVALID_VALUE, INVALID_DEVICE = 801, 1, 101
BLOCK = 256
NONE, READ, READ_WRITE = 0, 1, 3
RELAXED = 2

u32, u64, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
driver = ctypes.CDLL("libcuda.so.1")


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class MemoryProperties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("windows", pointer), ("flags", ctypes.c_uint8 * 8)]  # fmt: skip


class PoolProperties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("windows", pointer), ("most", ctypes.c_size_t),
                ("rest", ctypes.c_uint8 * 56)]  # fmt: skip


PINNED, ON_DEVICE = 1, Location(1, 0)
PROPERTIES = MemoryProperties(PINNED, 0, ON_DEVICE)


class RefusedError(Exception):
    """A call that this device or driver does not do."""


def call(name, *arguments):
    result = getattr(driver, name)(*arguments)
    if result == NOT_SUPPORTED:
        raise RefusedError(f"{name}: not supported")
    if result:
        sys.exit(f"{name}: {result}")


def made(name, kind, *arguments):
    value = kind()
    call(name, ctypes.byref(value), *arguments)
    return value


class Workload:
    """Looks, numbered as they are made."""

    def __init__(self, threads, rounds):
        self.threads, self.rounds = threads, rounds
        self.looks, self.left_out = {}, {}
        call("cuInit", 0)
        self.context = made("cuDevicePrimaryCtxRetain", pointer, 0)
        call("cuCtxSetCurrent", self.context)
        self.function = self.load()
        self.stream = made("cuStreamCreate", pointer, 1)
        self.other = made("cuStreamCreate", pointer, 1)
        grain = made("cuMemGetAllocationGranularity", ctypes.c_size_t, ctypes.byref(PROPERTIES), 0)
        self.unit = -(-8 * threads // grain.value) * grain.value
        self.values = (u64 * (2 * self.unit // 8))(
            *((i * 2654435761 + 12345) & 0xFFFFFFFF for i in range(2 * self.unit // 8))
        )

    def load(self):
        module = made("cuModuleLoadData", pointer, PTX)
        return made("cuModuleGetFunction", pointer, module, b"look")

    def fill(self, address, size):
        call("cuMemcpyHtoD_v2", address, self.values, ctypes.c_size_t(size))

    def launch(self, address, threads, which, stream=None, function=None):
        values = (u64(address), u32(threads), u32(which))
        arguments = (pointer * 3)(*(ctypes.addressof(each) for each in values))
        shape = (-(-threads // BLOCK), 1, 1, BLOCK, 1, 1, 0)
        call("cuLaunchKernel", function or self.function, *shape, stream, arguments, None)

    def number(self, name, threads):
        row = {"which": len(self.looks), "threads": threads, "read": 0, "sum": 0}
        self.looks[name] = row
        return row

    def look(self, name, address, *, first=None, read=None, stream=None, function=None):
        """At ``threads`` words; ``first``: the byte in ``values`` that is expected there, None if
        none may be read; ``read``: how many of them may."""
        row = self.number(name, self.threads)
        if first is not None:
            row["read"] = self.threads if read is None else read
            row["sum"] = self.sum_of(first, row["read"])
        self.launch(address, self.threads, row["which"], stream or self.stream, function)
        call("cuStreamSynchronize", stream or self.stream)

    def sum_of(self, first, words):
        whole = bytes(memoryview(self.values).cast("B")[first : first + 8 * words])
        return sum(memoryview(whole).cast("Q")) % 2**64

    # pools

    def pools(self):
        size = ctypes.c_size_t(8 * self.threads)
        own = made("cuMemPoolCreate", pointer, ctypes.byref(PoolProperties(PINNED, 0, ON_DEVICE)))
        plain = made("cuMemAllocAsync", u64, size, self.stream).value
        from_pool = made("cuMemAllocFromPoolAsync", u64, size, own, self.stream).value
        per_thread = made("cuMemAllocAsync_ptsz", u64, size, None).value
        call("cuCtxSynchronize")
        for name, address in (
            ("pool", plain), ("own pool", from_pool), ("per thread", per_thread)
        ):  # fmt: skip
            self.fill(u64(address), size.value)
            self.look(name, address, first=0)
        call("cuMemFreeAsync", u64(plain), self.stream)
        self.look("pool, freed", plain)
        call("cuMemPoolDestroy", own)
        self.look("own pool, destroyed, not freed", from_pool, first=0)
        call("cuMemFree_v2", u64(from_pool))
        self.look("own pool, freed", from_pool)
        call("cuMemFreeAsync_ptsz", u64(per_thread), None)
        call("cuCtxSynchronize")
        call("cuMemPoolTrimTo", made("cuDeviceGetDefaultMemPool", pointer, 0), ctypes.c_size_t(0))
        self.look("pool, trimmed", plain)
        self.look("per thread, trimmed", per_thread)

    def behind(self):
        """Memory that a stream will have when it gets there is mapped when the call returns: a
        read on another stream meanwhile does no harm, and what it reads may be anything."""
        own = made("cuMemPoolCreate", pointer, ctypes.byref(PoolProperties(PINNED, 0, ON_DEVICE)))
        size = ctypes.c_size_t(8 * self.threads)
        wait = ctypes.CFUNCTYPE(None, pointer)(lambda _: time.sleep(0.5))
        call("cuLaunchHostFunc", self.other, wait, None)
        address = made("cuMemAllocFromPoolAsync", u64, size, own, self.other).value
        row = self.number("pool, not there in its stream yet", self.threads)
        row |= {"read": self.threads, "sum": None}
        self.launch(address, self.threads, row["which"], self.stream)
        call("cuStreamSynchronize", self.stream)
        call("cuStreamSynchronize", self.other)
        call("cuMemFreeAsync", u64(address), self.other)
        call("cuStreamSynchronize", self.other)
        call("cuMemPoolDestroy", own)

    def graphs(self):
        call("cuStreamBeginCapture_v2", self.stream, RELAXED)
        graph, size = pointer(), ctypes.c_size_t(8 * self.threads)
        try:
            address = made("cuMemAllocAsync", u64, size, self.stream).value
            row = self.number("graph, inside", self.threads)
            self.launch(address, self.threads, row["which"], self.stream)
            call("cuMemFreeAsync", u64(address), self.stream)
        except RefusedError:
            driver.cuStreamEndCapture(self.stream, ctypes.byref(graph))
            raise
        call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        ready = made("cuGraphInstantiateWithFlags", pointer, graph, u64(0))
        call("cuGraphLaunch", ready, self.stream)
        call("cuStreamSynchronize", self.stream)
        self.look("graph, outside", address)

    # mappings

    def create(self):
        return made(
            "cuMemCreate", u64, ctypes.c_size_t(self.unit), ctypes.byref(PROPERTIES), u64(0)
        )

    def map(self, address, handle):
        call(
            "cuMemMap", u64(address), ctypes.c_size_t(self.unit), ctypes.c_size_t(0), handle, u64(0)
        )

    def allow(self, address, size, flags):
        access = Access(ON_DEVICE, flags)
        size = ctypes.c_size_t(size)
        call("cuMemSetAccess", u64(address), size, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self, address):
        call("cuMemUnmap", u64(address), ctypes.c_size_t(self.unit))

    def reserve(self, units):
        size = ctypes.c_size_t(units * self.unit)
        nothing = (ctypes.c_size_t(0), u64(0), u64(0))
        return made("cuMemAddressReserve", u64, size, *nothing).value

    def mappings(self):
        base, unit = self.reserve(4), self.unit
        handles = [self.create(), self.create()]
        for number, handle in enumerate(handles):
            self.map(base + number * unit, handle)
        self.look("mapped, no access", base)
        self.allow(base, 2 * unit, READ_WRITE)
        self.fill(u64(base), 2 * unit)
        border = unit - 8 * (self.threads // 2) - 4  # one word is half in each
        self.look("mapped", base, first=0)
        self.look("mapped, from one to the next", base + border, first=border)
        other = made("cuCtxCreate_v2", pointer, 0, 0)
        stream = made("cuStreamCreate", pointer, 1)
        self.look("mapped, second context", base, first=0, stream=stream, function=self.load())
        call("cuCtxDestroy_v2", other)
        call("cuCtxSetCurrent", self.context)
        for handle in handles:
            call("cuMemRelease", handle)
        self.look("mapped, handles released", base, first=0)
        self.unmap(base + unit)
        half = self.threads // 2
        self.look("half unmapped", base + border, first=border, read=half)
        self.look("unmapped", base + unit)
        try:
            self.allow(base, unit, NONE)
            self.look("access taken", base)
            self.allow(base, unit, READ_WRITE)
            self.look("access given again", base, first=0)
        except RefusedError as error:
            self.left_out["access taken"] = str(error)
        self.unmap(base)
        self.look("all unmapped", base)
        call("cuMemAddressFree", u64(base), ctypes.c_size_t(4 * unit))

    def read_only(self):
        base, handle = self.reserve(1), self.create()
        self.map(base, handle)
        self.allow(base, self.unit, READ_WRITE)
        self.fill(u64(base), self.unit)
        access = Access(ON_DEVICE, READ)
        result = driver.cuMemSetAccess(
            u64(base), ctypes.c_size_t(self.unit), ctypes.byref(access), ctypes.c_size_t(1)
        )
        if not result:
            self.look("mapped, only to be read", base, first=0)
        else:
            self.left_out["mapped, only to be read"] = f"cuMemSetAccess: {result}"
        self.unmap(base)
        call("cuMemRelease", handle)
        call("cuMemAddressFree", u64(base), ctypes.c_size_t(self.unit))

    # what goes while a kernel looks at it

    def going(self):
        threads = 16 * self.threads
        row = self.number("pool, freed meanwhile", threads * self.rounds)
        row |= {"read": None, "sum": None}
        default, size = made("cuDeviceGetDefaultMemPool", pointer, 0), ctypes.c_size_t(8 * threads)
        for _ in range(self.rounds):
            address = made("cuMemAllocAsync", u64, size, self.other).value
            call("cuStreamSynchronize", self.other)
            self.launch(address, threads, row["which"], self.stream)
            call("cuMemFreeAsync", u64(address), self.other)
            call("cuStreamSynchronize", self.other)
            call("cuMemPoolTrimTo", default, ctypes.c_size_t(0))
        call("cuStreamSynchronize", self.stream)
        row = self.number("mapped, unmapped meanwhile", self.threads * self.rounds)
        row |= {"read": None, "sum": None}
        base, handle = self.reserve(1), self.create()
        for _ in range(self.rounds):
            self.map(base, handle)
            self.allow(base, self.unit, READ_WRITE)
            self.launch(base, self.threads, row["which"], self.stream)
            self.unmap(base)
        call("cuStreamSynchronize", self.stream)
        call("cuMemRelease", handle)
        call("cuMemAddressFree", u64(base), ctypes.c_size_t(self.unit))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--threads", type=int, default=1 << 16)
    options.add_argument("--rounds", type=int, default=200)
    given = options.parse_args()
    workload = Workload(given.threads, given.rounds)
    for part in ("pools", "behind", "graphs", "mappings", "read_only", "going"):
        try:
            getattr(workload, part)()
        except RefusedError as error:
            workload.left_out[part] = str(error)
        call("cuCtxSynchronize")
    print(json.dumps({"looks": workload.looks, "left_out": workload.left_out}))


main()
