// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Every kernel: a record of 32 bytes for each group of lanes that leaves, into a ring per SM. */
#ifndef RING_BYTES
#define RING_BYTES (1 << 22)
#endif
#include "egpu.bpf.h"

struct record {
	__u64 time;
	__u64 clock;
	__u32 sm;
	__u32 warp;
	__u32 block;
	__u32 lanes;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
} records SEC(".maps");

SEC("kretprobe.warp/*")
int left(struct egpu_ctx *ctx)
{
	struct record r = {
		.time = egpu_globaltimer(ctx),
		.clock = egpu_clock(ctx),
		.sm = egpu_sm(ctx),
		.warp = egpu_warp(ctx),
		.block = egpu_block_x(ctx),
		.lanes = egpu_active_mask(ctx),
	};

	bpf_ringbuf_output(&records, &r, sizeof(r), 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
