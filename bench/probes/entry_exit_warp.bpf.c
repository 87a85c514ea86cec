// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Entry and exit counted per SM: one lane adds for all lanes that are there with it. */
#ifndef KERNELS
#define KERNELS "*_probed"
#endif
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline __u64 lanes(__u32 mask)
{
	mask -= mask >> 1 & 0x55555555;
	mask = (mask & 0x33333333) + (mask >> 2 & 0x33333333);
	mask = (mask + (mask >> 4)) & 0x0f0f0f0f;
	return mask * 0x01010101 >> 24;
}

static __always_inline void count(struct egpu_ctx *ctx, __u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &which);

	if (value)
		*value += lanes(ctx->active_mask);
}

SEC("kprobe.warp/" KERNELS)
int entered(struct egpu_ctx *ctx)
{
	count(ctx, 0);
	return 0;
}

SEC("kretprobe.warp/" KERNELS)
int left(struct egpu_ctx *ctx)
{
	count(ctx, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
