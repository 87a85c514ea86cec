"""printf and assert, as nvcc calls them."""

import numpy as np
import pytest
from sim_kernels import Device, kernel

from egpu.errors import DeviceFault
from egpu.sim import FaultKind

TEXTS = {
    "format": "%d of %s: %5.2f %#x %lld %c|%-4d|%%|%u|%03d\n",
    "name": "block",
    "message": "i < n",
    "file": "a.cu",
    "function": "void k(int)",
}


def variable(name, text):
    data = text.encode() + b"\0"
    return f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};\n"


BEFORE = (
    "".join(variable(name, text) for name, text in TEXTS.items())
    + """
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.extern .func __assertfail
(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s) .noreturn;
"""
)

PRINT = """
.local .align 8 .b8 depot[64];
setp.ge.u32 %p1, %r0, 2;
@%p1 bra skip;
mov.u64 %rd2, depot;
cvta.local.u64 %rd3, %rd2;
st.local.u32 [%rd2], %r0;
mov.u64 %rd4, name;
st.local.u64 [%rd2+8], %rd4;
cvt.rn.f64.u32 %fd1, %r0;
add.f64 %fd1, %fd1, 0d3FF8000000000000;
st.local.f64 [%rd2+16], %fd1;
st.local.u32 [%rd2+24], 171;
mov.u64 %rd5, -5000000000;
st.local.u64 [%rd2+32], %rd5;
st.local.u32 [%rd2+40], 65;
st.local.u32 [%rd2+44], -7;
st.local.u32 [%rd2+48], -1;
st.local.u32 [%rd2+52], 5;
mov.u64 %rd6, format;
{
.param .b64 f;
st.param.b64 [f], %rd6;
.param .b64 a;
st.param.b64 [a], %rd3;
.param .b32 r;
call.uni (r), vprintf, (f, a);
ld.param.b32 %r1, [r];
}
st.global.u32 [%rd0], %r1;
skip:
"""


def test_print():
    device = Device()
    out = device.put(np.zeros(1, np.uint32))
    report = device.launch(kernel(PRINT, before=BEFORE), 1, 32, out)
    tail = "0xab -5000000000 A|-7  |%|4294967295|005\n"
    assert report.printed == f"0 of block:  1.50 {tail}1 of block:  2.50 {tail}"
    assert device.get(out)[0] == 9


ASSERT = """
setp.ne.u32 %p1, %r0, 4;
@%p1 bra fine;
mov.u64 %rd1, message;
mov.u64 %rd2, file;
mov.u64 %rd3, function;
{
.param .b64 m;
st.param.b64 [m], %rd1;
.param .b64 f;
st.param.b64 [f], %rd2;
.param .b32 l;
st.param.b32 [l], 12;
.param .b64 n;
st.param.b64 [n], %rd3;
.param .b64 s;
st.param.b64 [s], 1;
call.uni __assertfail, (m, f, l, n, s);
}
fine:
"""


def test_assert():
    with pytest.raises(
        DeviceFault, match=r"a\.cu:12: void k\(int\): assertion `i < n` failed"
    ) as e:
        Device().launch(kernel(ASSERT, params=0, before=BEFORE), 1, 32)
    assert e.value.kind is FaultKind.ASSERT
    assert e.value.thread == (4, 0, 0)
    Device().launch(kernel(ASSERT, params=0, before=BEFORE), 1, 4)
