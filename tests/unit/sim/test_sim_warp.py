"""Warp-wide instructions against a lane-by-lane model."""

import numpy as np
import pytest
from sim_kernels import run_threads, store_r

from egpu.errors import DeviceFault, UnsupportedError


def shuffle_model(mode, lane, amount, bounds):
    """The pseudo-code of the ISA."""
    clamp, segment = bounds & 31, bounds >> 8 & 31
    most = lane & segment | clamp & ~segment & 31
    if mode == "up":
        source = lane - amount
        valid = source >= most
    elif mode == "down":
        source = lane + amount
        valid = source <= most
    elif mode == "bfly":
        source = lane ^ amount
        valid = source <= most
    else:
        source = lane & segment | amount & ~segment & 31
        valid = source <= most
    return (source if valid else lane), valid


@pytest.mark.parametrize("width", [32, 16, 8, 4])
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffle(mode, width):
    bounds = (32 - width) << 8 | (0 if mode == "up" else 31)
    for amount in (0, 1, 3, 9):
        body = f"""
mul.lo.u32 %r2, %r0, 3;
shfl.sync.{mode}.b32 %r1|%p1, %r2, {amount}, {bounds}, -1;
selp.u32 %r3, 1000, 0, %p1;
add.u32 %r1, %r1, %r3;
"""
        got = run_threads(body + store_r(), 2, 64)
        for i, value in enumerate(got.tolist()):
            source, valid = shuffle_model(mode, i % 32, amount, bounds)
            assert value == 3 * (i - i % 32 + source) + 1000 * valid


def test_shuffle_in_a_partial_warp():
    body = "shfl.sync.down.b32 %r1, %r0, 16, 31, 0xffffffff;"
    got = run_threads(body + store_r(), 3, 40)
    for i, value in enumerate(got.tolist()):
        thread, lane = i % 40, i % 40 % 32
        size = 32 if thread < 32 else 8
        assert value == (i + 16 if lane + 16 < size else i)


def test_votes():
    body = """
and.b32 %r2, %r0, 3;
setp.eq.u32 %p1, %r2, 1;
vote.sync.ballot.b32 %r1, %p1, 0xffffffff;
vote.sync.any.pred %p2, %p1, -1;
vote.sync.all.pred %p3, %p1, -1;
setp.lt.u32 %p4, %r0, 32;
vote.sync.uni.pred %p5, %p4, -1;
vote.sync.all.pred %p6, !%p3, -1;
@!%p2 trap;
@%p3 trap;
@!%p5 trap;
@!%p6 trap;
"""
    assert set(run_threads(body + store_r(), 1, 64).tolist()) == {0x22222222}


def test_vote_of_a_partial_warp():
    body = "setp.eq.u32 %p1, 0, 0;\nvote.sync.ballot.b32 %r1, %p1, 0xffffffff;"
    got = run_threads(body + store_r(), 1, 37)
    assert got.tolist() == [0xFFFFFFFF] * 32 + [0x1F] * 5


def test_active_mask_of_a_branch():
    body = """
and.b32 %r2, %r0, 1;
setp.eq.u32 %p1, %r2, 0;
@%p1 bra even;
activemask.b32 %r1;
bra.uni join;
even:
activemask.b32 %r1;
join:
activemask.b32 %r3;
setp.ne.u32 %p2, %r3, 0xffffffff;
@%p2 trap;
"""
    assert run_threads(body + store_r(), 1, 32).tolist() == [0x55555555, 0xAAAAAAAA] * 16


def test_match():
    body = """
and.b32 %r2, %r0, 3;
match.any.sync.b32 %r1, %r2, 0xffffffff;
match.all.sync.b32 %r3|%p1, %r2, 0xffffffff;
@%p1 trap;
mov.u64 %rd2, 77;
match.all.sync.b64 %r4|%p2, %rd2, 0xffffffff;
@!%p2 trap;
setp.ne.u32 %p3, %r4, 0xffffffff;
@%p3 trap;
"""
    got = run_threads(body + store_r(), 1, 32)
    assert got.tolist() == [0x11111111 << (i % 4) for i in range(32)]


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("add.s32", lambda v: sum(v) & 0xFFFFFFFF),
        ("min.s32", lambda v: min(v) & 0xFFFFFFFF),
        ("max.s32", lambda v: max(v) & 0xFFFFFFFF),
        ("min.u32", lambda v: min(x & 0xFFFFFFFF for x in v)),
        ("and.b32", lambda v: np.bitwise_and.reduce([x & 0xFFFFFFFF for x in v])),
        ("xor.b32", lambda v: np.bitwise_xor.reduce([x & 0xFFFFFFFF for x in v])),
    ],
)
def test_reduce(operation, function):
    body = f"sub.s32 %r2, 20, %r0;\nredux.sync.{operation} %r1, %r2, 0xffffffff;"
    got = run_threads(body + store_r(), 1, 64)
    for warp in range(2):
        values = [20 - i for i in range(32 * warp, 32 * warp + 32)]
        assert set(got[32 * warp : 32 * warp + 32].tolist()) == {int(function(values))}


def test_halves_of_a_warp_in_one_instruction():
    body = """
setp.lt.u32 %p1, %r0, 16;
selp.b32 %r2, 0x0000ffff, 0xffff0000, %p1;
redux.sync.add.u32 %r1, %r0, %r2;
"""
    got = run_threads(body + store_r(), 1, 32)
    assert got.tolist() == [sum(range(16))] * 16 + [sum(range(16, 32))] * 16


def test_collective_waits_for_diverged_lanes():
    # the odd lanes come to the ballot after a loop, the even ones at once
    body = """
mov.u32 %r2, 0;
and.b32 %r3, %r0, 1;
setp.eq.u32 %p1, %r3, 0;
@%p1 bra vote;
bra.uni work;
vote:
setp.eq.u32 %p2, 0, 0;
vote.sync.ballot.b32 %r1, %p2, 0xffffffff;
bra.uni done;
work:
add.u32 %r2, %r2, 1;
setp.lt.u32 %p3, %r2, %r0;
@%p3 bra work;
bra.uni vote;
done:
"""
    assert set(run_threads(body + store_r(), 2, 64).tolist()) == {0xFFFFFFFF}


def test_exited_lanes_are_not_waited_for():
    body = """
mov.u32 %r1, 9;
setp.ge.u32 %p1, %r32, 20;
@%p1 bra late;
vote.sync.ballot.b32 %r1, %p2, 0xffffffff;
setp.eq.u32 %p2, 0, 0;
vote.sync.ballot.b32 %r1, %p2, 0xffffffff;
bra.uni done;
late:
mov.u32 %r5, 0;
again:
add.u32 %r5, %r5, 1;
setp.lt.u32 %p3, %r5, 50;
@%p3 bra again;
exit;
done:
"""
    assert run_threads(body + store_r(), 1, 32).tolist() == [0xFFFFF] * 20 + [0] * 12


def test_warp_barrier_at_two_places():
    body = """
.shared .align 4 .b32 cell[32];
mov.u32 %r2, cell;
shl.b32 %r3, %r32, 2;
add.u32 %r4, %r2, %r3;
setp.lt.u32 %p1, %r32, 16;
@%p1 bra low;
add.u32 %r5, %r0, 100;
st.shared.u32 [%r4], %r5;
bar.warp.sync 0xffffffff;
bra.uni join;
low:
st.shared.u32 [%r4], %r0;
bar.warp.sync 0xffffffff;
join:
xor.b32 %r6, %r3, 124;
add.u32 %r6, %r2, %r6;
ld.shared.u32 %r1, [%r6];
"""
    got = run_threads(body + store_r(), 1, 32)
    assert got.tolist() == [(31 - i) + 100 * (i < 16) for i in range(32)]


def test_mask_without_the_own_lane():
    with pytest.raises(DeviceFault, match="leaves out the lane"):
        run_threads("bar.warp.sync 0x0000ffff;", 1, 32)


def test_forms_without_sync_are_refused():
    with pytest.raises(UnsupportedError, match=r"shfl\.down\.b32"):
        run_threads("shfl.down.b32 %r1, %r2, 1, 31;", 1, 32)
