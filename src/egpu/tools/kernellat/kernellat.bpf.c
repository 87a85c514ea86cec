// SPDX-License-Identifier: Apache-2.0 OR MIT
/* kernellat: one record for each group of lanes that leaves a kernel together.
 *
 * The host merges them: a block is complete when its records' lanes sum to its threads.
 */
#include "egpu.bpf.h"

struct event {
	__u64 launch_id;
	__u64 start; /* %globaltimer, ns: the group's entry */
	__u64 end;   /* and now */
	__u32 kernel_id;
	__u32 block;  /* linear */
	__u32 blocks; /* in the grid */
	__u32 sm;
	__u16 threads; /* in the block */
	__u8 lanes;
	__u8 flags; /* of the launch: bit 0, launched from a graph */
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024 * 1024);
	__type(value, struct event);
} events SEC(".maps");

/* Records that do not exist because the grid has 2^32 blocks or more. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} oversized SEC(".maps");

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

SEC("kretprobe.warp/*")
int leave(void *ctx)
{
	__u64 plane = (__u64)egpu_grid_x(ctx) * egpu_grid_y(ctx); /* below 2^47 */
	__u64 now = egpu_globaltimer(ctx);
	__u32 first = 0;
	struct event *event;

	/* plane * grid_z stays below 2^63. */
	if (plane * egpu_grid_z(ctx) >> 32) {
		__u64 *lost = bpf_map_lookup_elem(&oversized, &first);

		if (lost)
			add(lost, 1);
		return 0;
	}
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 0; /* the ring counts it */
	event->launch_id = egpu_launch_id(ctx);
	event->start = egpu_start_time(ctx);
	event->end = now;
	event->kernel_id = egpu_kernel_id(ctx);
	event->block = (__u32)(egpu_block_z(ctx) * plane +
			       (__u64)egpu_block_y(ctx) * egpu_grid_x(ctx) + egpu_block_x(ctx));
	event->blocks = (__u32)(plane * egpu_grid_z(ctx));
	event->sm = egpu_sm(ctx);
	event->threads = (__u16)(egpu_block_dim_x(ctx) * egpu_block_dim_y(ctx) *
				 egpu_block_dim_z(ctx));
	event->lanes = (__u8)lanes(egpu_active_mask(ctx));
	event->flags = (__u8)egpu_flags(ctx);
	event->reserved = 0;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
