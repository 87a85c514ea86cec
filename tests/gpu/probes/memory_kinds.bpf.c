// SPDX-License-Identifier: Apache-2.0 OR MIT
// Reads what workloads/memory_kinds.py points at, in look(u64 address, u32 n, u32 which): eight bytes for
// each of n threads.  By `which`: how many were read, what they add up to, how often there was nothing.
#include "egpu.bpf.h"

#define EFAULT 14

enum { READ, SUM, FAULTS, KINDS, MOST = 64 };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MOST * KINDS);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

static __always_inline void add(__u32 key, __u64 value)
{
	__u64 *total = bpf_map_lookup_elem(&seen, &key);
	if (total)
		__sync_fetch_and_add(total, value);
}

SEC("kprobe/look")
int memory_kinds(struct egpu_ctx *ctx)
{
	__u64 address = PT_REGS_PARM1(ctx);
	__u32 n = PT_REGS_PARM2(ctx), which = PT_REGS_PARM3(ctx);
	__u64 i = (__u64)ctx->block_x * ctx->block_dim_x + ctx->thread_x;
	__u64 value = 1;
	long result;
	if (i >= n)
		return 0;
	result = bpf_probe_read(&value, sizeof(value), (void *)(address + 8 * i));
	if (!result) {
		add(which * KINDS + READ, 1);
		add(which * KINDS + SUM, value);
	} else if (result == -EFAULT && !value) {
		add(which * KINDS + FAULTS, 1);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
