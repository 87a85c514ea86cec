"""Programs of uprobe sections at launch calls: what they set is what the launch sees."""

import errno
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_host_maps import running
from test_late_attach import idle
from test_runtime_cli import pytestmark as built

import egpu
from egpu.cli.machine import demo_folder
from egpu.errors import InputError, MapError, UnsupportedError
from egpu.tools.build import compiler

INCLUDE = Path(__file__).parents[2] / "bpf" / "include"  # of this tree, whatever is installed
pytestmark = [built, pytest.mark.skipif(find_spec("ziglang") is None, reason="no BPF compiler")]

HEAD = """
#include "egpu.bpf.h"
#define MAP(name, kind, entries) struct { __uint(type, BPF_MAP_TYPE_##kind); \\
  __uint(max_entries, entries); __type(key, __u32); __type(value, __u64); } name SEC(".maps")
static __always_inline __u64 *at(void *map, __u32 key) { return bpf_map_lookup_elem(map, &key); }
static __always_inline void add(void *map, __u32 key, __u64 n) {
  __u64 *value = at(map, key);
  if (value) __sync_fetch_and_add(value, n);
}
char LICENSE[] SEC("license") = "GPL";
#define CALL "libcuda.so.1:cuLaunchKernel"
"""


@pytest.fixture
def compiled(tmp_path):
    def build(text):
        source, target = tmp_path / "host.bpf.c", tmp_path / "host.bpf.o"
        source.write_text(HEAD + text)
        flags = ["-mcpu=v3", "-O2", "-g", "-c", f"-I{INCLUDE}", "-o", str(target), str(source)]
        subprocess.run([*compiler(), *flags], check=True)
        return target

    return build


NUMBERED = """
MAP(launch, ARRAY, 2); MAP(sums, ARRAY, 4); MAP(threads, HASH, 8);
SEC("uprobe/" CALL) int before(void *ctx) {
  __u64 *n = at(&launch, 0);
  if (n) *n += 1;
  return 0;
}
SEC("uretprobe/" CALL) int after(void *ctx) {
  __u64 *n = at(&launch, 1), now = bpf_ktime_get_ns(), who = bpf_get_current_pid_tgid();
  __u32 thread = who;
  if (n) *n += 1;
  bpf_map_update_elem(&threads, &thread, &now, BPF_ANY);
  return 0;
}
SEC("kprobe/*") int count(struct egpu_ctx *c) {
  __u64 *n = at(&launch, 0), *left = at(&launch, 1);
  add(&sums, 0, 1);
  if (n) add(&sums, 1, *n);
  if (left) add(&sums, 2, *left);
  return 0;
}
"""


def test_each_launch_sees_what_was_set_before_it(tmp_path, compiled):
    """Launch k finds k, and that k - 1 calls have returned, in every one of its threads."""
    began = time.monotonic_ns()
    with running(tmp_path, compiled(NUMBERED)) as (session, stepper):
        sizes = [(5, 33), (1, 1), (7, 64), (2, 31), (3, 10)]
        for number, (grid, block) in enumerate(sizes):
            stepper.do(f"{('first', 'second')[number % 2]} {grid} {block}")
        stepper.end(session)
        threads = [grid * block for grid, block in sizes]
        sums = session.maps["sums"].to_dict()
        assert sums[0] == sum(threads)
        assert sums[1] == sum(number * count for number, count in enumerate(threads, 1))
        assert sums[2] == sum(number * count for number, count in enumerate(threads))
        assert session.maps["launch"].to_dict() == {0: 5, 1: 5}
        ((thread, when),) = session.maps["threads"].items()
        assert thread == session.pid
        assert began < when < time.monotonic_ns()
        assert session.notes == ()


def test_values_set_from_outside_are_gone_on_from(tmp_path, compiled):
    with running(tmp_path, compiled(NUMBERED)) as (session, stepper):
        session.maps["launch"][0] = 100
        stepper.do("first 2 3")
        session.maps["launch"][0] = 1000
        stepper.do("first 2 3")
        session.snapshot()
        assert session.maps["sums"][1] == 6 * (101 + 1001)
        session.links["before"].detach()
        stepper.do("first 2 3")
        session.snapshot()
        assert session.maps["sums"][1] == 6 * (101 + 1001 + 1001)
        assert session.maps["launch"][1] == 3
        session.links["before"].attach()
        stepper.do("first 2 3")
        session.snapshot()
        assert session.maps["launch"][0] == 1002
        stepper.end(session)


def test_what_both_sides_add_to(tmp_path, compiled):
    """One array: launches counted on the host, threads in kernels, both in the same element too."""
    path = compiled("""
MAP(counts, ARRAY, 3);
SEC("uprobe/" CALL) int launching(void *ctx) {
  add(&counts, 0, 1);
  add(&counts, 2, 1000);
  return 0;
}
SEC("kretprobe/first") int left(struct egpu_ctx *c) {
  add(&counts, 1, 1);
  add(&counts, 2, 1);
  return 0;
}
""")
    with running(tmp_path, path) as (session, stepper):
        counts = session.maps["counts"]
        stepper.do("second 1 1")  # no memory of the maps yet
        assert counts.to_dict() == {0: 1, 1: 0, 2: 1000}
        for _ in range(3):
            stepper.do("first 4 10")
        session.snapshot()
        assert counts.to_dict() == {0: 4, 1: 120, 2: 4120}
        counts[2] = 7
        stepper.do("first 4 10")
        stepper.end(session)
        assert counts.to_dict() == {0: 5, 1: 160, 2: 7 + 1040}


def test_variables_that_both_sides_add_to(tmp_path, compiled):
    path = compiled("""
__u64 launches, threads, both;
SEC("uprobe/" CALL) int launching(void *ctx) {
  __sync_fetch_and_add(&launches, 1);
  __sync_fetch_and_add(&both, 1000);
  return 0;
}
SEC("kprobe/first") int entered(struct egpu_ctx *c) {
  __sync_fetch_and_add(&threads, 1);
  __sync_fetch_and_add(&both, 1);
  return 0;
}
""")
    with running(tmp_path, path) as (session, stepper):
        variables = session.maps[".bss"]
        for _ in range(3):
            stepper.do("first 4 10")
        session.snapshot()
        assert [variables[name] for name in ("launches", "threads", "both")] == [3, 120, 3120]
        variables["both"] = 5
        stepper.do("first 4 10")
        stepper.end(session)
        assert [variables[name] for name in ("launches", "threads", "both")] == [4, 160, 1045]


def test_launches_that_wait_for_each_other(tmp_path, compiled):
    """Several in a row without waiting: each finds its own number, or already a later one's."""
    with running(tmp_path, compiled(NUMBERED)) as (session, stepper):
        stepper.do("start first 3 32 6")
        stepper.do("wait")
        stepper.end(session)
        assert session.maps["launch"].to_dict() == {0: 6, 1: 6}
        least = 96 * sum(range(1, 7))
        assert least <= session.maps["sums"][1] <= 96 * 36


def test_lines_that_the_host_prints(tmp_path, compiled):
    path = compiled("""
SEC("uprobe/" CALL) int tell(void *ctx) {
  __u32 pid = bpf_get_current_pid_tgid() >> 32;
  bpf_printk("launching in %u", pid);
  return 0;
}
SEC("kprobe/first") int inside(struct egpu_ctx *c) { bpf_printk("in it"); return 0; }
""")
    with running(tmp_path, path) as (session, stepper):
        stepper.do("first 1 1")
        stepper.do("second 1 1")
        stepper.end(session)
        lines = [str(line) for line in session.prints.finish()]
    pid = session.pid
    wanted = f"tell[{pid}] thread {pid}: launching in {pid}"
    assert sorted(lines) == sorted(
        [wanted, wanted, f"first[{pid}] block 0,0,0 thread 0,0,0: in it"]
    )


def test_what_a_program_knows_of_its_thread(tmp_path, compiled):
    path = compiled("""
MAP(known, ARRAY, 4);
static __always_inline void keep(__u32 which, __u64 what) {
  bpf_map_update_elem(&known, &which, &what, BPF_ANY);
}
SEC("uprobe/" CALL) int ask(void *ctx) {
  __u64 comm[2] = {};
  __u64 *before = at(&known, 3);
  keep(0, bpf_get_current_pid_tgid());
  keep(1, bpf_get_current_uid_gid());
  bpf_get_current_comm(comm, sizeof(comm));
  keep(2, comm[0]);
  keep(3, (before ? *before << 32 : 0) | bpf_get_prandom_u32());
  return 0;
}
SEC("kprobe/first") int inside(struct egpu_ctx *c) { return 0; }
""")
    with running(tmp_path, path) as (session, stepper):
        for _ in range(2):
            stepper.do("first 1 1")
        stepper.end(session)
        known = session.maps["known"].to_dict()
        assert known[0] == session.pid << 32 | session.pid
        assert known[1] == os.getgid() << 32 | os.getuid()
        name = known[2].to_bytes(8, "little").rstrip(b"\0")
        assert Path(sys.executable).resolve().name.encode().startswith(name[:6])
        assert known[3] >> 32 != known[3] & 0xFFFFFFFF


STACKS = """
#define FRAMES 16
struct { __uint(type, BPF_MAP_TYPE_STACK_TRACE); __uint(max_entries, 64);
  __uint(key_size, 4); __uint(value_size, FRAMES * 8); } stacks SEC(".maps");
struct callers { __u64 at[FRAMES]; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4);
  __type(key, __u32); __type(value, struct callers); } kept SEC(".maps");
MAP(known, ARRAY, 8); MAP(seen, HASH, 64);
static __always_inline void keep(__u32 which, __u64 what) {
  bpf_map_update_elem(&known, &which, &what, BPF_ANY);
}
SEC("uprobe/" CALL) int before(void *ctx) {
  __u32 whole = 0, skipped = 1, few = 2;
  struct callers *all = bpf_map_lookup_elem(&kept, &whole);
  struct callers *rest = bpf_map_lookup_elem(&kept, &skipped);
  struct callers *two = bpf_map_lookup_elem(&kept, &few);
  __u64 odd;
  if (!all || !rest || !two) return 0;
  keep(0, bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK));
  keep(1, bpf_get_stack(ctx, all, sizeof *all, BPF_F_USER_STACK));
  keep(2, bpf_get_stack(ctx, rest, sizeof *rest, BPF_F_USER_STACK | 1));
  keep(3, bpf_get_stack(ctx, two, 16, 0));
  keep(4, bpf_get_stack(ctx, &odd, 7, 0));
  keep(5, bpf_get_stack(ctx, &odd, 8, 1 << 11));
  keep(6, bpf_get_stack(ctx, &odd, 8, 255));
  keep(7, bpf_get_stackid(ctx, &stacks, 255));
  return 0;
}
SEC("kprobe/*") int count(struct egpu_ctx *c) {
  __u32 launch = c->launch_id;
  __u64 number = bpf_get_stackid(c, &stacks, 0);
  bpf_map_update_elem(&seen, &launch, &number, BPF_ANY);
  return 0;
}
"""


def test_a_program_on_the_host_has_its_stack(tmp_path, compiled):
    """By number and by its frames: the number is the launch's, and the frames are those of it."""
    path = compiled(STACKS)
    with running(tmp_path, path) as (session, stepper):
        stepper.do("first 2 3")
        stepper.do("second 1 1")
        stepper.end(session)
        known, kept = session.maps["known"].to_dict(), session.maps["kept"]
        seen = session.maps["seen"].to_dict()
        assert set(seen) == {1, 2}
        stacks = session.maps["stacks"]
        assert known[0] in stacks  # of the last launch
        assert seen[2] == known[0]
        whole, skipped, two = (list(kept[key].at) for key in range(3))
        frames = len([frame for frame in whole if frame])
        assert frames >= 2
        assert known[1] == 8 * frames
        assert [address for address in whole if address] == whole[:frames]
        assert len(stacks[known[0]]) == frames
        # The first is the caller of the driver's call, and its address ends as its place in a file.
        first = stacks[known[0]][0]
        assert first.path
        assert first.offset % 4096 == whole[0] % 4096
        after = [*whole[1:], 0]
        if frames < len(whole):  # what is further out had no room
            assert (known[2], skipped) == (8 * (frames - 1), after)
        else:
            assert skipped[:-1] == after[:-1]
        assert (known[3], two[:3]) == (16, [*whole[:2], 0])
        negative = {which: known[which] - (1 << 64) for which in (4, 5, 6, 7)}
        wrong, nothing = -errno.EINVAL, -errno.EFAULT
        assert negative == {4: wrong, 5: wrong, 6: nothing, 7: nothing}


def test_the_stack_of_a_launch_by_its_id(tmp_path, compiled):
    path = compiled(
        """
MAP(launches, HASH, 64);
SEC("kprobe/*") int count(struct egpu_ctx *c) {
  __u32 launch = c->launch_id;
  __u64 kernel = c->kernel_id;
  bpf_map_update_elem(&launches, &launch, &kernel, BPF_ANY);
  return 0;
}
"""
    )
    with running(tmp_path, path, stacks=True) as (session, stepper):
        for number in range(6):
            stepper.do(f"{('first', 'second')[number % 2]} 2 3")
        while_it_runs = session.stack_of(1)
        stepper.end(session)
        launches = session.maps["launches"].to_dict()
        assert sorted(launches) == [1, 2, 3, 4, 5, 6]
        found = {launch: session.stack_of(launch) for launch in launches}
        assert found[1] == while_it_runs
        assert all(found.values())
        assert {frame.path for frame in found[1]} >= {os.path.realpath(sys.executable)}
        assert session.stack_of(7) is None
        assert session.stack_of(1, pid=session.pid) == found[1]
        assert session.stack_of(1, pid=1) is None
        rows = session.launch_stacks()
        assert sorted(launch for row in rows for launch in row.launches) == sorted(launches)
        assert all(row.frames == found[launch] for row in rows for launch in row.launches)


def test_stacks_that_were_not_asked_for(tmp_path, compiled):
    path = compiled('SEC("kprobe/*") int nothing(struct egpu_ctx *c) { return 0; }')
    with running(tmp_path, path) as (session, stepper):
        stepper.do("first 1 1")
        stepper.end(session)
        assert session.launch_stacks() == ()
        with pytest.raises(InputError, match=r"keeps no stacks.*Options\(stacks=True\)"):
            session.stack_of(1)


REFUSED = {
    "another place": (
        'SEC("uprobe/libc.so.6:malloc") int p(void *ctx) { return 0; }',
        r"uprobe/libc.so.6:malloc.*a place where kernels are launched: libcuda.so.1:cuLaunchKernel",
    ),
    "no place": ('SEC("uprobe") int p(void *ctx) { return 0; }', r"uprobe/\(no place\)"),
    "no such program": (
        'SEC("uprobe//no/such:cudaLaunchKernel") int p(void *ctx) { return 0; }',
        "there is no such file",
    ),
    "a tracepoint": (
        'SEC("tracepoint/syscalls/sys_enter_read") int p(void *ctx) { return 0; }',
        "tracepoint/syscalls/sys_enter_read",
    ),
    "registers": (
        'SEC("uprobe/" CALL) int p(struct pt_regs *ctx) { return PT_REGS_PARM1(ctx); }',
        r"reads its context \(parm1\)",
    ),
    "where a thread is": (
        'SEC("uprobe/" CALL) int p(void *ctx) { return bpf_get_globaltimer(); }',
        "calls bpf_get_globaltimer",
    ),
    "a map that kernels set": (
        """MAP(m, ARRAY, 1);
SEC("uprobe/" CALL) int p(void *ctx) { __u64 *v = at(&m, 0); return v ? *v : 0; }
SEC("kprobe/*") int q(struct egpu_ctx *c) { add(&m, 0, 1); return 0; }""",
        r"map m \(ARRAY\) in a program that runs on the host",
    ),
    "a ring": (
        """struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } r SEC(".maps");
SEC("uprobe/" CALL) int p(void *ctx) {
  __u64 v = 1;
  bpf_ringbuf_output(&r, &v, 8, 0);
  return 0;
}""",
        "calls bpf_ringbuf_output",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_refused(case, compiled):
    text, words = REFUSED[case]
    options = egpu.Options(simulated=True)
    with pytest.raises(UnsupportedError, match=words):
        egpu.run(["true"], programs=compiled(text), options=options)


def test_a_frozen_map_and_one_that_is_read_only_outside(tmp_path, compiled):
    """Programs may still change what others may not."""
    path = compiled(
        NUMBERED.replace(
            "MAP(launch, ARRAY, 2);",
            """
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __uint(map_flags, BPF_F_RDONLY);
  __type(key, __u32); __type(value, __u64); } launch SEC(".maps");""",
        )
    )
    with running(tmp_path, path) as (session, stepper):
        session.maps["sums"].freeze()
        session.maps["threads"].freeze()
        with pytest.raises(MapError) as info:
            session.maps["launch"][0] = 1
        assert info.value.errno == errno.EPERM
        for _ in range(2):
            stepper.do("first 1 4")
        stepper.end(session)
        assert session.maps["launch"].to_dict() == {0: 2, 1: 2}
        assert session.maps["sums"][1] == 4 * 3


def test_an_idle_workload_has_no_programs_at_calls(tmp_path, compiled):
    with idle(tmp_path) as (workload, stepper):
        stepper.do("first 1 1")
        with pytest.raises(UnsupportedError, match="which was started without"):
            egpu.attach(workload, programs=str(compiled(NUMBERED)))


def test_the_report_has_what_they_set_though_no_kernel_was_probed(tmp_path, compiled):
    path = compiled("""
MAP(launch, ARRAY, 2); MAP(sizes, HASH, 2);
SEC("uprobe/" CALL) int before(void *ctx) {
  __u64 *n = at(&launch, 0), value = 7;
  __u32 key = 5;
  if (n) *n += 1;
  bpf_map_update_elem(&sizes, &key, &value, BPF_ANY);
  return 0;
}
""")
    demo = [sys.executable, "-m", "egpu", "run", "--sim", "--json", str(path), "-o"]
    demo += [
        str(tmp_path / "report"),
        "--",
        str(demo_folder() / "demo"),
        "--launches",
        "2",
        "--size",
        "64",
    ]
    subprocess.run(demo, check=True, capture_output=True)
    maps = json.loads((tmp_path / "report").read_text().splitlines()[-1])["maps"]
    assert maps["launch"] == [{"key": 0, "value": 10}]
    assert maps["sizes"] == [{"key": 5, "value": 7}]
