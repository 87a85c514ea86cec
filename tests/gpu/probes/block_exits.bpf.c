// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Blocks that were entered and left: how many, how many threads they have, and which they were, as a
 * sum of numbers that no two blocks of a launch share. */
#include "egpu.bpf.h"

enum { ENTERED, ENTERED_THREADS, ENTERED_SUM, LEFT, LEFT_THREADS, LEFT_SUM, ALONE, TOTALS };
#include "totals.h"

static __always_inline void count(struct egpu_ctx *ctx, __u32 which)
{
	__u64 plane = (__u64)ctx->block_z * ctx->grid_y + ctx->block_y;
	__u64 number = plane * ctx->grid_x + ctx->block_x;

	add(which, 1);
	add(which + 1, (__u64)ctx->block_dim_x * ctx->block_dim_y * ctx->block_dim_z);
	number = (number + 1) * 0x9e3779b97f4a7c15ull + ctx->launch_id;
	add(which + 2, (number ^ number >> 29) * 0xbf58476d1ce4e5b9ull);
}

SEC("kprobe.block/*")
int enter(struct egpu_ctx *ctx)
{
	count(ctx, ENTERED);
	return 0;
}

SEC("kretprobe.block/*")
int leave(struct egpu_ctx *ctx)
{
	count(ctx, LEFT);
	return 0;
}

/* The same by a second program: the two meet apart. */
SEC("kretprobe.block/*")
int leave_too(struct egpu_ctx *ctx __attribute__((unused)))
{
	add(ALONE, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
