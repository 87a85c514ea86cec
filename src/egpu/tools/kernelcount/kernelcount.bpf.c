// SPDX-License-Identifier: Apache-2.0 OR MIT
/* kernelcount: threads, blocks and leaving threads, by kernel and SM.
 *
 * A block's threads all come in, so thread (0, 0, 0) counts them.  They leave when they like: at each way
 * out one lane counts the lanes that are there with it, so the sums are exact whatever diverges.
 */
#include "egpu.bpf.h"

#define MAX_KERNELS 1024

struct counts {
	__u64 threads;
	__u64 exits;
	__u64 blocks;
};

/* The last row is for all kernels beyond the others. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_KERNELS + 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* Relaxed and without a result: one reduction, no fence. */
static __always_inline void add(__u64 *sum, __u64 amount)
{
	__atomic_fetch_add(sum, amount, __ATOMIC_RELAXED);
}

/* How many bits are set. */
static __always_inline __u64 lanes(__u32 mask)
{
	mask -= (mask >> 1) & 0x55555555;
	mask = (mask & 0x33333333) + ((mask >> 2) & 0x33333333);
	mask = (mask + (mask >> 4)) & 0x0f0f0f0f;
	return (mask * 0x01010101) >> 24;
}

static __always_inline struct counts *row(void *ctx)
{
	__u32 kernel = egpu_kernel_id(ctx);

	if (kernel > MAX_KERNELS)
		kernel = MAX_KERNELS;
	return bpf_map_lookup_elem(&counts, &kernel);
}

SEC("kprobe.block/*")
int count_entry(void *ctx)
{
	struct counts *sum = row(ctx);

	if (sum) {
		add(&sum->threads, egpu_block_dim_x(ctx) * egpu_block_dim_y(ctx) * egpu_block_dim_z(ctx));
		add(&sum->blocks, 1);
	}
	return 0;
}

SEC("kretprobe.warp/*")
int count_exit(void *ctx)
{
	struct counts *sum = row(ctx);

	if (sum)
		add(&sum->exits, lanes(egpu_active_mask(ctx)));
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
