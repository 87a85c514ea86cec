// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A ring that every thread writes to, at full rate: most records find no room.  A record's words
 * follow from its first two, so that one made of two is seen. */
#include "egpu.bpf.h"

#define MIX 0x9e3779b97f4a7c15ull

struct entry {
	__u64 launch;
	__u64 thread;
	__u64 product;
	__u64 sum;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
	__type(value, struct entry);
} entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} threads SEC(".maps");

static __always_inline void count(__u32 key, __u64 more)
{
	__u64 *value = bpf_map_lookup_elem(&threads, &key);

	if (value)
		*value += more;
}

static __always_inline void write(struct egpu_ctx *c, __u64 mark)
{
	__u64 block = ((__u64)c->block_z * c->grid_y + c->block_y) * c->grid_x + c->block_x;
	__u64 thread = ((__u64)c->thread_z * c->block_dim_y + c->thread_y) * c->block_dim_x +
		       c->thread_x;
	__u64 id = (block * (c->block_dim_x * c->block_dim_y * c->block_dim_z) + thread) | mark;
	struct entry entry = {c->launch_id, id, (id ^ c->launch_id << 40) * MIX,
			      (c->launch_id ^ id << 20) + MIX};

	count(0, 1);
	bpf_ringbuf_output(&entries, &entry, sizeof(entry), 0);
}

#ifdef SLOTS
static __always_inline __u64 lanes(__u32 mask)
{
	mask -= mask >> 1 & 0x55555555;
	mask = (mask & 0x33333333) + (mask >> 2 & 0x33333333);
	mask = (mask + (mask >> 4)) & 0x0f0f0f0f;
	return mask * 0x01010101 >> 24;
}

SEC("kprobe.warp/*")
int entered(struct egpu_ctx *c)
{
	count(1, lanes(c->active_mask));
	write(c, 0);
	return 0;
}

SEC("kretprobe.warp/*")
int left(struct egpu_ctx *c)
{
	count(1, lanes(c->active_mask));
	write(c, 1ull << 63);
	return 0;
}
#else
SEC("kprobe/*")
int entered(struct egpu_ctx *c)
{
	write(c, 0);
	return 0;
}
#endif

char LICENSE[] SEC("license") = "Dual MIT/GPL";
