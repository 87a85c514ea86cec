"""Divergence, loops, barriers, calls, and what ends a kernel."""

from types import SimpleNamespace

import numpy as np
import pytest
from sim_kernels import HEAD, Device, kernel, run_threads, store_r

from egpu.errors import DeviceFault, InputError, UnsupportedError
from egpu.image.ptx import parse
from egpu.sim import FaultKind, Machine
from egpu.sim.scheduler import NEVER, Threads


def test_loops_with_different_trip_counts():
    body = """
and.b32 %r2, %r0, 15;
mov.u32 %r1, 0;
mov.u32 %r3, 0;
outer:
setp.ge.u32 %p1, %r3, %r2;
@%p1 bra done;
mov.u32 %r4, 0;
inner:
setp.gt.u32 %p2, %r4, %r3;
@%p2 bra next;
add.u32 %r1, %r1, %r4;
add.u32 %r4, %r4, 1;
bra inner;
next:
add.u32 %r3, %r3, 1;
bra outer;
done:
"""
    got = run_threads(body + store_r(), 3, 50)
    expected = [sum(sum(range(j + 1)) for j in range(i & 15)) for i in range(150)]
    assert got.tolist() == expected


def test_nested_divergence_meets_again():
    body = """
mov.u32 %r1, 0;
and.b32 %r2, %r0, 1;
and.b32 %r3, %r0, 2;
setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r3, 0;
@%p1 bra a;
@%p2 bra b;
add.u32 %r1, %r1, 1;
bra.uni c;
b:
add.u32 %r1, %r1, 10;
c:
add.u32 %r1, %r1, 100;
bra.uni d;
a:
@!%p2 bra e;
add.u32 %r1, %r1, 1000;
e:
add.u32 %r1, %r1, 10000;
d:
activemask.b32 %r4;
setp.ne.u32 %p3, %r4, 0xffffffff;
@%p3 trap;
"""
    got = run_threads(body + store_r(), 1, 32)
    assert got.tolist() == [11000, 110, 10000, 101] * 8


def test_barrier_counts_only_threads_that_stay():
    # three quarters of each block leave in different ways before the barrier
    body = """
.shared .align 4 .b32 total;
setp.eq.u32 %p4, %r32, 0;
@%p4 st.shared.u32 [total], 0;
and.b32 %r2, %r32, 3;
setp.eq.u32 %p1, %r2, 1;
@%p1 ret;
setp.eq.u32 %p2, %r2, 2;
@%p2 bra gone;
bar.sync 0;
atom.shared.add.u32 %r3, [total], 1;
setp.eq.u32 %p3, %r2, 3;
@%p3 exit;
bar.sync 0;
ld.shared.u32 %r1, [total];
bra.uni keep;
gone:
exit;
keep:
"""
    got = run_threads(body + store_r(), 4, 64)
    assert got.tolist() == [32, 0, 0, 0] * 64


def test_named_barriers_and_counts():
    # producers arrive without waiting, consumers wait for all 64
    body = """
.shared .align 4 .b32 cell;
setp.lt.u32 %p1, %r32, 32;
@%p1 bra consumer;
setp.eq.u32 %p2, %r32, 63;
@%p2 st.shared.u32 [cell], 41;
bar.arrive 3, 64;
mov.u32 %r1, 7;
bra.uni done;
consumer:
bar.sync 3, 64;
ld.shared.u32 %r1, [cell];
done:
"""
    assert run_threads(body + store_r(), 2, 64).tolist() == ([41] * 32 + [7] * 32) * 2


def test_barrier_reductions():
    body = """
setp.lt.u32 %p1, %r32, 5;
barrier.cta.red.popc.aligned.u32 %r1, 0, %p1;
bar.red.and.pred %p2, 0, %p1;
@%p2 trap;
bar.red.or.pred %p3, 0, %p1;
@!%p3 trap;
bar.red.popc.u32 %r2, 0, !%p1;
mad.lo.u32 %r1, %r1, 100, %r2;
"""
    assert set(run_threads(body + store_r(), 3, 70).tolist()) == {565}


def test_spin_lock_makes_progress():
    # every lane takes the lock in turn: losers must not starve the holder
    body = """
.shared .align 4 .b32 lock;
.shared .align 4 .b32 total;
setp.eq.u32 %p4, %r32, 0;
@%p4 st.shared.u32 [lock], 0;
@%p4 st.shared.u32 [total], 0;
bar.sync 0;
again:
atom.shared.cas.b32 %r2, [lock], 0, 1;
setp.ne.u32 %p1, %r2, 0;
@%p1 bra again;
ld.shared.u32 %r3, [total];
add.u32 %r3, %r3, 1;
st.shared.u32 [total], %r3;
membar.cta;
atom.shared.exch.b32 %r4, [lock], 0;
bar.sync 0;
ld.shared.u32 %r1, [total];
"""
    assert set(run_threads(body + store_r(), 1, 40).tolist()) == {40}


def test_switch():
    body = """
and.b32 %r2, %r0, 3;
mov.u32 %r1, 9;
targets: .branchtargets zero, one, two, three;
brx.idx %r2, targets;
one:
add.u32 %r1, %r1, 10;
two:
add.u32 %r1, %r1, 100;
bra.uni three;
zero:
mov.u32 %r1, 1;
three:
"""
    assert run_threads(body + store_r(), 1, 32).tolist() == [1, 119, 109, 9] * 8


CALLS = """
.func (.param .b32 result) factorial(.param .b32 n)
{
.reg .pred %p<2>;
.reg .b32 %r<6>;
ld.param.u32 %r1, [n];
setp.lt.u32 %p1, %r1, 2;
mov.u32 %r4, 1;
@%p1 bra leave;
sub.u32 %r2, %r1, 1;
{
.param .b32 down;
st.param.b32 [down], %r2;
.param .b32 up;
call.uni (up), factorial, (down);
ld.param.b32 %r3, [up];
}
mul.lo.u32 %r4, %r3, %r1;
leave:
st.param.b32 [result], %r4;
ret;
}
"""
CALL = """
and.b32 %r2, %r0, MASK;
{
.param .b32 given;
st.param.b32 [given], %r2;
.param .b32 got;
call (got), factorial, (given);
ld.param.b32 %r1, [got];
}
"""


def test_recursive_calls():
    got = run_threads(CALL.replace("MASK", "7") + store_r(), 2, 32, before=CALLS)
    table = [1, 1, 2, 6, 24, 120, 720, 5040]
    assert got.tolist() == [table[i & 7] for i in range(64)]


def test_recursion_has_a_limit():
    with pytest.raises(UnsupportedError, match="recursion of factorial deeper than 16 calls"):
        run_threads(CALL.replace("MASK", "31") + store_r(), 1, 32, before=CALLS)


def test_predicated_call():
    before = """
.func add_ten(.param .b64 where)
{
.reg .b32 %r<3>;
.reg .b64 %rd<3>;
ld.param.u64 %rd1, [where];
ld.u32 %r1, [%rd1];
add.u32 %r1, %r1, 10;
st.u32 [%rd1], %r1;
}
"""
    body = """
mul.wide.u32 %rd1, %r0, 4;
add.u64 %rd1, %rd0, %rd1;
and.b32 %r2, %r0, 1;
setp.eq.u32 %p1, %r2, 1;
{
.param .b64 given;
st.param.b64 [given], %rd1;
@%p1 call add_ten, (given);
}
"""
    assert run_threads(body, 1, 8, before=before).tolist() == [0, 10] * 4


def test_calls_without_a_body_are_refused():
    before = ".extern .func (.param .b32 r) malloc (.param .b64 f, .param .b64 a);\n"
    body = """
{
.param .b64 f;
.param .b64 a;
.param .b32 r;
call.uni (r), malloc, (f, a);
}
"""
    with pytest.raises(UnsupportedError, match="malloc, which has no body here"):
        run_threads(body, 1, 1, before=before)


def test_trap():
    with pytest.raises(DeviceFault, match="trap, line") as caught:
        run_threads("setp.eq.u32 %p1, %r0, 70;\n@%p1 trap;", 3, 32)
    assert caught.value.kind is FaultKind.LAUNCH_FAILED
    assert (caught.value.block, caught.value.thread) == ((2, 0, 0), (6, 0, 0))


def test_deadlock_is_named():
    # the exited half is not waited for, but a barrier for 64 never fills
    body = "setp.lt.u32 %p1, %r32, 32;\n@%p1 exit;\nbar.sync 1, 64;"
    with pytest.raises(DeviceFault, match=r"deadlock: 32 threads wait.*bar\.sync 1, 64"):
        run_threads(body, 1, 64)


def test_endless_loop_ends():
    with pytest.raises(DeviceFault, match="not finished after 5000 steps") as caught:
        run_threads("forever:\nbra.uni forever;", 1, 32, device=Device(step_limit=5000))
    assert caught.value.kind is FaultKind.TIMEOUT


def test_special_registers():
    body = """
mov.u32 %r1, %laneid;
mov.u32 %r2, %warpid;
mad.lo.u32 %r1, %r2, 100, %r1;
mov.u32 %r3, %smid;
mad.lo.u32 %r1, %r3, 10000, %r1;
mov.u32 %r4, %nsmid;
mad.lo.u32 %r1, %r4, 1000000, %r1;
mov.u32 %r5, %lanemask_lt;
popc.b32 %r5, %r5;
mov.u32 %r6, %laneid;
setp.ne.u32 %p1, %r5, %r6;
@%p1 trap;
mov.u32 %r7, %lanemask_ge;
mov.u32 %r8, %lanemask_lt;
xor.b32 %r7, %r7, %r8;
setp.ne.u32 %p2, %r7, 0xffffffff;
@%p2 trap;
"""
    got = run_threads(body + store_r(), 5, 64, device=Device(sm_count=3))
    expected = [
        i % 32 + i // 32 * 100 + block % 3 * 10000 + 3000000
        for block in range(5)
        for i in range(64)
    ]
    assert got.tolist() == expected


def test_three_dimensions():
    body = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, %tid.y;
mov.u32 %r3, %tid.z;
mov.u32 %r4, %ctaid.y;
mov.u32 %r5, %ctaid.z;
mov.u32 %r6, %ntid.x;
mov.u32 %r7, %ntid.y;
mov.u32 %r8, %nctaid.x;
mov.u32 %r9, %nctaid.y;
mad.lo.u32 %r10, %r5, %r9, %r4;
mad.lo.u32 %r10, %r10, %r8, %r30;
mad.lo.u32 %r11, %r3, %r7, %r2;
mad.lo.u32 %r11, %r11, %r6, %r1;
mad.lo.u32 %r0, %r10, 30, %r11;
mov.u32 %r1, %r0;
"""
    device = Device()
    out = device.put(np.full(24 * 30, 0xFFFFFFFF, np.uint32))
    device.launch(kernel(body + store_r()), (2, 3, 4), (5, 3, 2), out)
    assert device.get(out).tolist() == list(range(720))


def test_clocks_go_forward_and_repeat():
    body = """
mov.u64 %rd2, %globaltimer;
mov.u64 %rd3, %clock64;
mov.u64 %rd4, %clock64;
sub.u64 %rd5, %rd4, %rd3;
setp.eq.u64 %p1, %rd5, 0;
@%p1 trap;
"""
    text = body + store_r("%rd2", 64)
    device = Device()
    first = run_threads(text, 1, 32, np.uint64, device=device)
    second = run_threads(text, 1, 32, np.uint64, device=device)
    assert second[0] > first[0]
    assert run_threads(text, 1, 32, np.uint64).tolist() == first.tolist()


def test_grid_waits_for_all_its_blocks():
    # a grid-wide barrier by spinning: only possible when the blocks run together
    body = """
bar.sync 0;
setp.ne.u32 %p1, %r32, 0;
@%p1 bra wait;
atom.global.add.u32 %r2, [%rd0], 1;
again:
ld.volatile.global.u32 %r3, [%rd0];
mov.u32 %r4, %nctaid.x;
setp.lt.u32 %p2, %r3, %r4;
@%p2 bra again;
wait:
bar.sync 0;
"""
    device = Device()
    counter = device.put(np.zeros(1, np.uint32))
    device.launch(kernel(body), 100, 1024, counter, together=True)
    assert device.get(counter)[0] == 100


def test_launch_that_does_not_fit():
    device = Device()
    text = f"{HEAD}.visible .entry k() .maxntid 64 {{ ret; }}"
    with pytest.raises(InputError, match="65 threads in a block of 64"):
        device.launch(text, 1, 65)
    text = f"{HEAD}.visible .entry k() .reqntid 8, 2 {{ ret; }}"
    assert device.launch(text, 3, (8, 2, 1)).threads == 48
    with pytest.raises(InputError, match="reqntid"):
        device.launch(text, 1, (16, 1, 1))
    with pytest.raises(InputError, match="no kernel other"):
        device.launch(text, 1, 16, kernel="other")
    with pytest.raises(InputError, match="positive"):
        device.launch(text, 0, (8, 2, 1))
    with pytest.raises(InputError, match="warps of 32"):
        Machine(device.memory, warp_size=64)


def test_report_counts():
    device = Device()
    report = device.machine.launch(
        parse(f"{HEAD}.visible .entry k() {{ ret; }}"), "k", (3, 2, 1), (33, 1, 1), b""
    )
    assert (report.blocks, report.threads, report.kernel, report.printed) == (6, 198, "k", "")
    assert report.steps == 1


def test_clocks_belong_to_warps():
    # warp 1 loops longer than warp 0, and both leave a barrier at one time
    body = """
mov.u64 %rd2, %clock64;
setp.lt.u32 %p1, %r32, 32;
selp.u32 %r2, 10, 100, %p1;
loop:
sub.u32 %r2, %r2, 1;
setp.ne.u32 %p2, %r2, 0;
@%p2 bra loop;
mov.u64 %rd3, %clock64;
bar.sync 0;
mov.u64 %rd4, %clock64;
sub.u64 %rd3, %rd3, %rd2;
sub.u64 %rd4, %rd4, %rd2;
mad.lo.u64 %rd3, %rd4, 1000, %rd3;
"""
    got = run_threads(body + store_r("%rd3", 64), 1, 64, np.uint64)
    short, long = 10 * 3 + 3, 100 * 3 + 3
    assert got.tolist() == [1000 * (long + 2) + short] * 32 + [1000 * (long + 2) + long] * 32


def test_diverged_lanes_cost_time_on_both_ways():
    body = """
mov.u64 %rd2, %clock64;
and.b32 %r2, %r0, 1;
setp.eq.u32 %p1, %r2, 0;
@%p1 bra even;
mov.u32 %r3, 1;
mov.u32 %r3, 2;
bra.uni join;
even:
mov.u32 %r3, 3;
join:
mov.u64 %rd3, %clock64;
sub.u64 %rd3, %rd3, %rd2;
"""
    got = run_threads(body + store_r("%rd3", 64), 1, 32, np.uint64)
    assert set(got.tolist()) == {3 + 3 + 1 + 1}


@pytest.mark.parametrize("most", [0, 1, 3, NEVER - 1])
def test_the_lowest_group_runs_up_to_the_next_one(most):
    rng = np.random.default_rng(most)
    for _ in range(300):
        count = int(rng.integers(1, 9))
        ready = rng.integers(0, most, count, np.int32, endpoint=True)
        ready[rng.random(count) < 0.3] = NEVER
        threads = Threads(SimpleNamespace(count=count))
        threads.ready = ready
        steps = sorted({int(step) for step in ready} - {NEVER})
        found = threads.next_group()
        if not steps:
            assert found is None
            continue
        step, members, above = found
        assert (step, above) == (steps[0], steps[1] if len(steps) > 1 else NEVER)
        assert np.arange(count)[members].tolist() == np.flatnonzero(ready == step).tolist()
