// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Every kernel: a record of 32 bytes for each group of lanes that leaves together, and their number added
 * up. */
#include "egpu.bpf.h"

struct group {
	__u32 block, warp, sm, lanes;
	__u64 clock, sum; /* of the others */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
	__type(value, struct group);
} groups SEC(".maps");

enum { LEFT, SENT, TOTALS };

#include "totals.h"

SEC("kretprobe.warp/*")
int leave(struct egpu_ctx *ctx)
{
	struct group group = {
		.block = egpu_block_x(ctx),
		.warp = egpu_warp(ctx),
		.sm = egpu_sm(ctx),
		.lanes = egpu_active_mask(ctx),
		.clock = egpu_clock(ctx),
	};

	group.sum = group.block + group.warp + group.sm + group.lanes + group.clock;
	bpf_ringbuf_output(&groups, &group, sizeof(group), 0);
	add(LEFT, __builtin_popcount(group.lanes));
	add(SENT, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
