"""A program written to libbpf's own headers, compiled and run as it is."""

import subprocess
from pathlib import Path

import pytest
from test_host_maps import running
from test_runtime_cli import pytestmark

from egpu.errors import UnsupportedError
from egpu.tools.build import compiler

__all__ = ["pytestmark"]

HEADERS = Path("/usr/include")

# What a generated vmlinux.h has of what the program and the headers use.
VMLINUX = """
#ifndef __VMLINUX_H__
#define __VMLINUX_H__
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
typedef unsigned char __u8;
typedef unsigned short __u16, __be16;
typedef unsigned int __u32, __be32, __wsum;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u32 u32;
typedef __u64 u64;
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_ANY, BPF_NOEXIST, BPF_EXIST };
struct pt_regs {
	long unsigned int r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip;
	long unsigned int cs, flags, sp, ss;
};
#pragma clang attribute pop
#endif
"""
PROGRAM = """
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

enum { THREADS, FIRST, SECOND, FIELDS, RETURNS, ROOM };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ROOM);
	__type(key, u32);
	__type(value, u64);
} sums SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, u64);
} sizes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} records SEC(".maps");

static __always_inline void add(u32 what, u64 amount)
{
	u64 *sum = bpf_map_lookup_elem(&sums, &what);

	if (sum)
		__sync_fetch_and_add(sum, amount);
}

SEC("kprobe/first")
int BPF_KPROBE(enters, u64 a, u32 n)
{
	u64 zero = 0, *seen, *record;

	add(THREADS, 1);
	add(FIRST, a);
	add(SECOND, n);
	add(FIELDS, bpf_core_field_exists(ctx->di));
	bpf_map_update_elem(&sizes, &n, &zero, BPF_NOEXIST);
	seen = bpf_map_lookup_elem(&sizes, &n);
	if (seen)
		__sync_fetch_and_add(seen, 1);
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (record) {
		*record = PT_REGS_PARM1(ctx);
		bpf_ringbuf_submit(record, 0);
	}
	return 0;
}

SEC("kretprobe/first")
int BPF_KRETPROBE(leaves)
{
	add(RETURNS, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not (HEADERS / "bpf" / "bpf_helpers.h").exists():
        pytest.skip("libbpf's headers are not installed (libbpf-dev)")
    try:
        command = compiler()
    except UnsupportedError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("libbpf")
    (folder / "vmlinux.h").write_text(VMLINUX)
    (folder / "bpf").symlink_to(HEADERS / "bpf")  # and nothing else of the system's headers
    source, target = folder / "shown.bpf.c", folder / "shown.bpf.o"
    source.write_text(PROGRAM)
    command += ["-mcpu=v3", "-O2", "-g", "-D__TARGET_ARCH_x86", f"-I{folder}"]
    subprocess.run([*command, "-c", str(source), "-o", str(target)], check=True)
    return target


def test_a_program_for_libbpf_runs_unchanged(program, tmp_path):
    """Threads, both parameters of the kernel, a hash map and a ring, by arithmetic."""
    with running(tmp_path, program) as (session, stepper):
        shapes = [(3, 33), (2, 64), (1, 31)]
        for grid, block in shapes:
            stepper.do(f"first {grid} {block}")
        stepper.do("second 5 5")
        stepper.end(session)
        counts = [grid * block for grid, block in shapes]
        threads = sum(counts)
        squares = sum(count * count for count in counts)
        assert list(session.maps["sums"].values()) == [
            threads,
            7 * threads,
            squares,
            threads,
            threads,
        ]
        assert dict(session.maps["sizes"]) == {count: count for count in counts}
        ring = session.maps["records"]
        records = [*ring, *ring.finish()]
        assert [int.from_bytes(each, "little") for each in records] == [7] * threads
