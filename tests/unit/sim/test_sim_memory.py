"""State spaces, faults and atomics."""

import numpy as np
import pytest
from sim_kernels import HEAD, Device, kernel, run_threads, store_r

from egpu.errors import DeviceFault, InputError, UnsupportedError
from egpu.image.ptx import parse
from egpu.sim import FaultKind


def test_vectors_and_widths():
    device = Device()
    data = np.arange(64, dtype=np.uint32)
    source, target = device.put(data), device.put(np.zeros(64, np.uint32))
    body = """
mul.wide.u32 %rd5, %r0, 16;
add.u64 %rd6, %rd1, %rd5;
add.u64 %rd7, %rd0, %rd5;
ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd6];
st.global.v2.u32 [%rd7+8], {%r1, %r2};
st.global.v2.b32 [%rd7], {%r3, %r4};
"""
    device.launch(kernel(body, 2), 1, 16, target, source)
    expected = data.reshape(16, 4)[:, [2, 3, 0, 1]].reshape(-1)
    assert device.get(target).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("type", "register", "expected"),
    [
        ("s8", "%r1", 0xFFFFFF80),
        ("u8", "%r1", 0x80),
        ("s16", "%r1", 0xFFFF8180),
        ("b16", "%r1", 0x8180),
    ],
)
def test_narrow_loads_extend(type, register, expected):
    device = Device()
    source = device.put(np.array([0x83828180], np.uint32))
    out = device.put(np.zeros(1, np.uint32))
    body = f"ld.global.{type} {register}, [%rd1];" + store_r()
    device.launch(kernel(body, 2), 1, 1, out, source)
    assert device.get(out)[0] == expected


def test_shared_memory_is_per_block():
    body = """
.shared .align 4 .b32 tile[64];
mov.u32 %r2, tile;
shl.b32 %r3, %r32, 2;
add.u32 %r4, %r2, %r3;
st.shared.u32 [%r4], %r0;
bar.sync 0;
sub.u32 %r5, %r31, 1;
sub.u32 %r5, %r5, %r32;
shl.b32 %r5, %r5, 2;
add.u32 %r5, %r2, %r5;
ld.shared.u32 %r1, [%r5];
"""
    got = run_threads(body + store_r(), 5, 64)
    assert got.tolist() == np.arange(320).reshape(5, 64)[:, ::-1].reshape(-1).tolist()


def test_dynamic_shared_memory():
    before = ".extern .shared .align 16 .b8 dynamic[];\n"
    body = """
.shared .align 4 .b32 fixed[3];
st.shared.u32 [fixed+8], 7;
mov.u32 %r2, dynamic;
st.shared.u32 [%r2+60], 5;
ld.shared.u32 %r1, [fixed+8];
mov.u32 %r3, %dynamic_smem_size;
add.u32 %r1, %r1, %r3;
"""
    text = kernel(body + store_r(), before=before)
    device = Device()
    out = device.put(np.zeros(1, np.uint32))
    device.launch(text, 1, 1, out, dynamic_shared=64)
    assert device.get(out)[0] == 71
    with pytest.raises(DeviceFault, match="leave the 60 bytes of shared memory"):
        device.launch(text, 1, 1, out, dynamic_shared=44)


def test_generic_addresses_reach_every_space():
    body = """
.local .align 8 .b8 own[16];
.shared .align 8 .b8 common[512];
mov.u64 %rd2, own;
cvta.local.u64 %rd3, %rd2;
mov.u64 %rd4, common;
cvta.shared.u64 %rd5, %rd4;
mul.wide.u32 %rd6, %r32, 8;
add.u64 %rd5, %rd5, %rd6;
setp.lt.u32 %p1, %r32, 16;
selp.b64 %rd7, %rd3, %rd5, %p1;
cvt.u64.u32 %rd8, %r0;
st.u64 [%rd7], %rd8;
ld.u32 %r1, [%rd7];
isspacep.local %p2, %rd7;
selp.u32 %r2, 1000, 0, %p2;
add.u32 %r1, %r1, %r2;
cvta.to.shared.u64 %rd9, %rd5;
isspacep.shared %p3, %rd5;
@!%p3 trap;
isspacep.global %p4, %rd0;
@!%p4 trap;
"""
    got = run_threads(body + store_r(), 2, 32)
    expected = [i + 1000 * (i % 32 < 16) for i in range(64)]
    assert got.tolist() == expected


def test_module_variables():
    before = """
.const .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 0, 0, 0};
.global .align 4 .f32 scale = 0f40000000;
.global .align 4 .u32 counter = 5;
.global .align 8 .u64 pointer[2] = {generic(counter), counter+4};
"""
    body = """
ld.const.u32 %r1, [table+4];
ld.global.f32 %f1, [scale];
cvt.rzi.u32.f32 %r2, %f1;
ld.global.u64 %rd2, [pointer];
ld.u32 %r3, [%rd2];
ld.global.u64 %rd3, [pointer+8];
sub.u64 %rd3, %rd3, %rd2;
cvt.u32.u64 %r4, %rd3;
mad.lo.u32 %r1, %r1, 1000, %r2;
mad.lo.u32 %r1, %r1, 100, %r3;
mad.lo.u32 %r1, %r1, 10, %r4;
"""
    assert run_threads(body + store_r(), 1, 1, before=before)[0] == ((2002 * 100) + 5) * 10 + 4


def test_parameters_of_every_size():
    text = f"""{HEAD}
.visible .entry k(.param .u64 out, .param .u8 small, .param .align 16 .b8 big[32], .param .f32 x)
{{
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
.reg .f32 %f<3>;
ld.param.u64 %rd1, [out];
ld.param.u8 %r1, [small];
ld.param.u32 %r2, [big+12];
ld.param.f32 %f1, [x];
cvt.rzi.u32.f32 %r3, %f1;
mov.b64 %rd2, big;
cvta.param.u64 %rd3, %rd2;
ld.u32 %r4, [%rd3+28];
st.global.v4.u32 [%rd1], {{%r1, %r2, %r3, %r4}};
}}
"""
    device = Device()
    out = device.put(np.zeros(4, np.uint32))
    params = bytearray(52)
    params[0:8] = out.to_bytes(8, "little")
    params[8] = 200
    params[16:48] = np.arange(8, dtype=np.uint32).tobytes()
    params[48:52] = np.float32(9).tobytes()
    device.machine.launch(parse(text), "k", (1, 1, 1), (1, 1, 1), bytes(params))
    assert device.get(out).tolist() == [200, 3, 9, 7]
    with pytest.raises(InputError, match="40 bytes of parameters, 52 needed"):
        device.machine.launch(parse(text), "k", (1, 1, 1), (1, 1, 1), bytes(40))


def fault_of(body, blocks=2, threads=32, **options):
    with pytest.raises(DeviceFault) as caught:
        run_threads(body, blocks, threads, **options)
    return caught.value


def test_out_of_bounds_names_the_thread():
    body = """
mul.wide.u32 %rd2, %r0, 4;
add.u64 %rd2, %rd0, %rd2;
setp.eq.u32 %p1, %r0, 39;
@%p1 add.u64 %rd2, %rd2, 65536;
st.global.u32 [%rd2], %r0;
"""
    fault = fault_of(body)
    assert fault.kind is FaultKind.ILLEGAL_ADDRESS
    assert fault.block == (1, 0, 0)
    assert fault.thread == (7, 0, 0)
    assert "st.global.u32 [%rd2], %r0" in str(fault)
    assert "k, block" in str(fault)


def test_one_byte_past_the_end():
    body = """
mul.wide.u32 %rd2, %r0, 4;
add.u64 %rd2, %rd0, %rd2;
ld.global.u64 %rd3, [%rd2];
"""
    fault = fault_of(body, 1, 1)
    assert fault.kind is FaultKind.ILLEGAL_ADDRESS


def test_misaligned():
    fault = fault_of("ld.global.u32 %r1, [%rd0+2];", 1, 1)
    assert fault.kind is FaultKind.MISALIGNED_ADDRESS
    fault = fault_of("ld.global.v2.u32 {%r1, %r2}, [%rd0+4];", 1, 8)
    assert fault.kind is FaultKind.MISALIGNED_ADDRESS


def test_null_pointer():
    assert fault_of("ld.u32 %r1, [0];", 1, 1).kind is FaultKind.ILLEGAL_ADDRESS


def test_lanes_in_different_allocations():
    device = Device()
    first, second = device.put(np.full(32, 3, np.uint32)), device.put(np.full(32, 4, np.uint32))
    out = device.put(np.zeros(32, np.uint32))
    body = """
and.b32 %r2, %r0, 1;
setp.eq.u32 %p1, %r2, 0;
selp.b64 %rd3, %rd1, %rd2, %p1;
ld.global.u32 %r1, [%rd3];
"""
    device.launch(kernel(body + store_r(), 3), 1, 32, out, first, second)
    assert device.get(out).tolist() == [3, 4] * 16


ATOMICS = {
    "add.u32": (np.uint32, lambda old, a, b: old + a),
    "add.s32": (np.int32, lambda old, a, b: old + a),
    "add.u64": (np.uint64, lambda old, a, b: old + a),
    "and.b32": (np.uint32, lambda old, a, b: old & a),
    "or.b64": (np.uint64, lambda old, a, b: old | a),
    "xor.b32": (np.uint32, lambda old, a, b: old ^ a),
    "min.u32": (np.uint32, lambda old, a, b: min(old, a)),
    "min.s32": (np.int32, lambda old, a, b: min(old, a)),
    "max.u64": (np.uint64, lambda old, a, b: max(old, a)),
    "max.s64": (np.int64, lambda old, a, b: max(old, a)),
    "exch.b32": (np.uint32, lambda old, a, b: a),
    "inc.u32": (np.uint32, lambda old, a, b: 0 if old >= a else old + 1),
    "dec.u32": (np.uint32, lambda old, a, b: a if old == 0 or old > a else old - 1),
    "cas.b32": (np.uint32, lambda old, a, b: b if old == a else old),
    "cas.b64": (np.uint64, lambda old, a, b: b if old == a else old),
    "add.f32": (np.float32, lambda old, a, b: old + a),
    "add.f64": (np.float64, lambda old, a, b: old + a),
}
CELLS, THREADS = 7, 96


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_in_lane_order(name, space):
    dtype, function = ATOMICS[name]
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(31)
    if dtype.kind == "f":
        start, a = (
            rng.standard_normal(CELLS).astype(dtype),
            rng.standard_normal(THREADS).astype(dtype),
        )
        b = a
    else:
        start = rng.integers(0, 6, CELLS).astype(dtype)
        a, b = (rng.integers(0, 6, THREADS).astype(dtype) for _ in range(2))
    cell = rng.integers(0, CELLS, THREADS)
    size = dtype.itemsize
    device = Device()
    places = [
        device.put(x) for x in (np.zeros(THREADS, dtype), start, a, b, cell.astype(np.uint32))
    ]
    second = f", %y{2}" if name.startswith("cas") else ""
    middle = "" if not space else f".{space}"
    inner = "%rd10"
    copy_in = copy_out = ""
    if space == "shared":
        inner = "%rd13"
        copy_in = f"""
.shared .align 8 .b8 cells[{CELLS * size}];
mov.u64 %rd11, cells;
add.u64 %rd13, %rd11, %rd9;
mul.wide.u32 %rd14, %r32, {size};
add.u64 %rd15, %rd1, %rd14;
add.u64 %rd16, %rd11, %rd14;
setp.lt.u32 %p5, %r32, {CELLS};
@%p5 ld.global.b{size * 8} %y3, [%rd15];
@%p5 st.shared.b{size * 8} [%rd16], %y3;
bar.sync 0;
"""
        copy_out = f"""
bar.sync 0;
@%p5 ld.shared.b{size * 8} %y3, [%rd16];
@%p5 st.global.b{size * 8} [%rd15], %y3;
"""
    body = f"""
.reg .b{size * 8} %y<4>;
mul.wide.u32 %rd5, %r0, {size};
add.u64 %rd6, %rd2, %rd5;
ld.global.b{size * 8} %y1, [%rd6];
add.u64 %rd7, %rd3, %rd5;
ld.global.b{size * 8} %y2, [%rd7];
mul.wide.u32 %rd8, %r0, 4;
add.u64 %rd8, %rd4, %rd8;
ld.global.u32 %r2, [%rd8];
mul.wide.u32 %rd9, %r2, {size};
add.u64 %rd10, %rd1, %rd9;
{copy_in}
atom{middle}.{name} %y0, [{inner}], %y1{second};
{copy_out}
"""
    device.launch(kernel(body + store_r("%y0", size * 8), 5), 1, THREADS, *places)
    state, expected = start.copy(), []
    for i in range(THREADS):
        old = state[cell[i]]
        expected.append(old)
        if dtype.kind == "f":
            state[cell[i]] = function(old, a[i], b[i])
        else:
            state[cell[i]] = function(int(old), int(a[i]), int(b[i]))
    assert device.get(places[0]).tolist() == np.array(expected).tolist()
    assert device.get(places[1]).tolist() == state.tolist()


def test_reductions_without_result():
    device = Device()
    total = device.put(np.zeros(1, np.uint64))
    body = "cvt.u64.u32 %rd2, %r0;\nred.release.gpu.global.add.u64 [%rd0], %rd2;"
    device.launch(kernel(body), 300, 256, total)
    count = 300 * 256
    assert device.get(total)[0] == count * (count - 1) // 2


@pytest.mark.parametrize(
    "line",
    [
        "atom.global.add.noftz.f16 %h1, [%rd0], %h2;",
        "atom.global.cas.b128 %rd1, [%rd0], %rd2, %rd3;",
        "cp.async.ca.shared.global [%r1], [%rd0], 16;",
        "wgmma.fence.sync.aligned;",
        "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 %r1, %r2;",
        "add.cc.u16 %h1, %h1, %h2;",
        "elect.sync %r1|%p1, 0xffffffff;",
        "ld.global.b128 %rd1, [%rd0];",
    ],
)
def test_what_is_not_simulated_is_named(line):
    with pytest.raises(UnsupportedError) as caught:
        run_threads(line, 1, 1)
    opcode = line.split()[0].rstrip(";")
    assert opcode in str(caught.value)
    assert "kernel k, line" in str(caught.value)
