"""Small PTX kernels for the tests of the simulated device."""

import struct

import numpy as np

from egpu.image.ptx import parse
from egpu.sim import DeviceMemory, Machine

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
WIDTH = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}


class Device:
    """A machine with arrays in its memory."""

    def __init__(self, sm_count=4, **options):
        self.memory = DeviceMemory()
        self.machine = Machine(self.memory, sm_count, **options)
        self.arrays = {}

    def put(self, array):
        array = np.ascontiguousarray(array)
        address = self.memory.allocate(array.nbytes)
        self.memory.write(address, array.tobytes())
        self.arrays[address] = (array.dtype, array.nbytes)
        return address

    def get(self, address):
        dtype, size = self.arrays[address]
        return np.frombuffer(self.memory.read(address, size), dtype).copy()

    def launch(self, text, grid, block, *params, kernel="k", **options):
        block = block if isinstance(block, tuple) else (block, 1, 1)
        grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        packed = struct.pack(f"<{len(params)}Q", *params)
        return self.machine.launch(parse(text), kernel, grid, block, packed, **options)


def kernel(body, params=1, head=HEAD, before=""):
    """A kernel ``k`` with u64 parameters p0, p1, … in %rd0, %rd1, …; %r0 is the global thread."""
    names = ", ".join(f".param .u64 p{i}" for i in range(params))
    loads = "\n".join(f"ld.param.u64 %rd{i}, [p{i}];" for i in range(params))
    return f"""{head}{before}
.visible .entry k({names})
{{
.reg .pred %p<20>;
.reg .b16 %h<20>;
.reg .b32 %r<40>;
.reg .b64 %rd<40>;
.reg .f32 %f<20>;
.reg .f64 %fd<20>;
{loads}
mov.u32 %r30, %ctaid.x;
mov.u32 %r31, %ntid.x;
mov.u32 %r32, %tid.x;
mad.lo.u32 %r0, %r30, %r31, %r32;
{body}
}}
"""


def store_r(register="%r1", width=32):
    """Store a register into the u32 (or u64) array at %rd0, one per global thread."""
    return f"""
mul.wide.u32 %rd30, %r0, {width // 8};
add.u64 %rd30, %rd0, %rd30;
st.global.b{width} [%rd30], {register};
"""


def run_threads(body, blocks, threads, dtype=np.uint32, device=None, **options):
    """Run a body that stores one value per thread at %rd0; gives the values."""
    device = device or Device()
    out = device.put(np.zeros(blocks * threads, dtype))
    device.launch(kernel(body, **options), blocks, threads, out)
    return device.get(out)


def evaluate(instruction, inputs, result, extra=""):
    """``instruction`` with %x0, %x1, … the inputs and %y the result, for each element.

    ``inputs`` are arrays of one length (bool arrays become predicates %x…); ``result`` a dtype, or
    bool for a predicate.
    """
    device = Device()
    count = len(inputs[0])
    result = np.dtype(result)
    predicate = result == np.bool_
    stored = np.dtype(np.uint32) if predicate else result
    out = device.put(np.zeros(count, stored))
    lines, declared = [], []
    addresses = [out]
    for i, values in enumerate(inputs):
        is_predicate = values.dtype == np.bool_
        memory = values.astype(np.uint32) if is_predicate else values
        addresses.append(device.put(memory))
        size = memory.dtype.itemsize
        lines.append(f"mul.wide.u32 %rd30, %r0, {size};\nadd.u64 %rd30, %rd{i + 1}, %rd30;")
        if is_predicate:
            declared.append(f".reg .pred %x{i};")
            lines.append(f"ld.global.b32 %r20, [%rd30];\nsetp.ne.u32 %x{i}, %r20, 0;")
        else:
            register = max(size, 2)
            declared.append(f".reg .{WIDTH[register]} %x{i};")
            lines.append(f"ld.global.{WIDTH[size]} %x{i}, [%rd30];")
    size = stored.itemsize
    declared.append(".reg .pred %y;" if predicate else f".reg .{WIDTH[max(size, 2)]} %y;")
    source = "%y"
    lines.append(instruction)
    if predicate:
        lines.append("selp.b32 %r21, 1, 0, %y;")
        source = "%r21"
    lines.append(f"mul.wide.u32 %rd30, %r0, {size};\nadd.u64 %rd30, %rd0, %rd30;")
    lines.append(f"st.global.{WIDTH[size]} [%rd30], {source};")
    guard = f"setp.ge.u32 %p19, %r0, {count};\n@%p19 exit;"
    text = kernel("\n".join([*declared, extra, guard, *lines]), params=len(addresses))
    device.launch(text, -(-count // 64), 64, *addresses)
    values = device.get(out)
    return values.astype(np.bool_) if predicate else values


def edge_values(rng, dtype, count):
    """Random integers, half of them near the edges of the type."""
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    edges = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7], dtype=dtype)
    if info.min < 0:
        edges = np.concatenate((edges, np.array([-1, -2, -7], dtype=dtype)))
    picked = rng.random(count) < 0.5
    values[picked] = rng.choice(edges, count)[picked]
    return values
