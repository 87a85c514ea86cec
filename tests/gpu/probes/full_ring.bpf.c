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
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} threads SEC(".maps");

SEC("kprobe/*")
int write(struct egpu_ctx *c)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&threads, &zero);
	__u64 block = ((__u64)c->block_z * c->grid_y + c->block_y) * c->grid_x + c->block_x;
	__u64 thread = ((__u64)c->thread_z * c->block_dim_y + c->thread_y) * c->block_dim_x +
		       c->thread_x;
	__u64 id = block * (c->block_dim_x * c->block_dim_y * c->block_dim_z) + thread;
	struct entry entry = {c->launch_id, id, (id ^ c->launch_id << 40) * MIX,
			      (c->launch_id ^ id << 20) + MIX};

	if (count)
		*count += 1;
	bpf_ringbuf_output(&entries, &entry, sizeof(entry), 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
