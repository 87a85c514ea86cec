// SPDX-License-Identifier: Apache-2.0 OR MIT
/* blocksched: which block ran on which SM, from when to when; a record for each block.
 *
 * Each group of lanes that leaves together arrives at its block, where lanes are added up.  The group
 * that completes the block (its lanes sum to the block's threads) is the last one: it sends the block's
 * record.  A block that leaves in one group meets nobody.  What is done here holds up the block's place
 * on the SM, so there is no more of it than that.
 *
 * Nothing waits: what is given up is counted in `lost`, a full ring counts what it dropped.
 */
#include "../meeting.h"

#define SLOTS (1 << 16) /* of blocks that are on the device at one time */

struct block {
	__u64 launch;
	__u64 start; /* ns, entry of thread 0's warp */
	__u64 end;   /* ns, last exit */
	__u32 kernel;
	__u32 index; /* along x, then y, then z */
	__u32 grid_x;
	__u16 grid_y;
	__u16 grid_z;
	__u16 sm;
	__u16 threads;
	__u32 flags; /* of the launch: bit 0, from a graph */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 128 << 20);
	__type(value, struct block);
} blocks SEC(".maps");

/* Where the groups of a block meet. */
struct meeting {
	__u64 key;   /* launch and index; 0: free */
	__u64 start; /* set by the group that thread 0 leaves with; 0 before */
	__u64 late;  /* last exit */
	__u64 count; /* of the lanes that arrived */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct meeting);
} meetings SEC(".maps");

struct lost {
	__u64 crowded;   /* groups of lanes that found no slot */
	__u64 oversized; /* groups in grids of 2^32 blocks or more */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lost);
} lost SEC(".maps");

/* Relaxed and without a result: one reduction, no fence. */
static __always_inline void add(__u64 *sum, __u64 amount)
{
	__atomic_fetch_add(sum, amount, __ATOMIC_RELAXED);
}

static __always_inline struct lost *losses(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&lost, &first);
}

/* The slot of `key`: it has two, the second is used while something else meets in the first.  Whoever
 * comes later must find the same one, so it looks at the second before it takes the first. */
static __always_inline struct meeting *meet(__u64 key, __u32 first)
{
	__u32 second = (__u32)((key * 0x9e3779b97f4a7c15ull) >> 47);
	struct meeting *one, *two;
	__u64 was;

	first &= SLOTS - 1;
	second &= SLOTS - 1;
	one = bpf_map_lookup_elem(&meetings, &first);
	two = bpf_map_lookup_elem(&meetings, &second);
	if (!one || !two)
		return 0;
	if (*(volatile __u64 *)&one->key == key)
		return one;
	if (swap(&two->key, key, key) == key)
		return two;
	was = swap(&one->key, 0, key);
	if (was && was != key) {
		one = two;
		was = swap(&one->key, 0, key);
		if (was && was != key)
			return 0;
	}
	return one;
}

/* True for the group that completes the block; then start and end are the block's.
 *
 * The exchange that adds is ordered (RFC 9669: with a result), so who sees the last count sees what
 * the others put there before their own additions. */
static __always_inline int arrive(struct block *b, __u64 entry, __u64 now, __u32 amount, __u32 thread)
{
	__u64 key = 1ull << 63 | b->launch << 32 | b->index; /* never 0 */
	struct meeting *m;

	b->start = entry;
	b->end = now;
	if (amount == b->threads)
		return 1;
	m = meet(key, b->index + (__u32)b->launch * 0x9e3779b1);
	if (!m) {
		struct lost *l = losses();

		if (l)
			add(&l->crowded, 1);
		return 0;
	}
	if (!thread) /* one group of a block: the maximum of 0 and this stores it, seen by all SMs */
		egpu_atomic_max(&m->start, entry);
	egpu_atomic_max(&m->late, now);
	if (__sync_fetch_and_add(&m->count, amount) + amount != b->threads)
		return 0;
	b->start = __sync_lock_test_and_set(&m->start, 0);
	b->end = __sync_lock_test_and_set(&m->late, 0);
	m->count = 0;
	__sync_lock_test_and_set(&m->key, 0);
	return 1;
}

SEC("kretprobe.warp/*")
int leave(void *ctx)
{
	__u64 now = egpu_globaltimer(ctx);
	__u64 plane = (__u64)egpu_grid_x(ctx) * egpu_grid_y(ctx); /* below 2^47 */
	struct block b = {};
	__u32 thread;

	if (plane * egpu_grid_z(ctx) >> 32) {
		struct lost *l = losses();

		if (l)
			add(&l->oversized, 1);
		return 0;
	}
	b.launch = egpu_launch_id(ctx);
	b.kernel = egpu_kernel_id(ctx);
	b.index = (__u32)(egpu_block_z(ctx) * plane + (__u64)egpu_block_y(ctx) * egpu_grid_x(ctx) +
			  egpu_block_x(ctx));
	b.grid_x = egpu_grid_x(ctx);
	b.grid_y = egpu_grid_y(ctx);
	b.grid_z = egpu_grid_z(ctx);
	b.sm = egpu_sm(ctx);
	b.threads = egpu_block_dim_x(ctx) * egpu_block_dim_y(ctx) * egpu_block_dim_z(ctx);
	b.flags = egpu_flags(ctx);
	/* The first active lane is thread (0,0,0) of its block exactly once a block. */
	thread = egpu_thread_x(ctx) | egpu_thread_y(ctx) | egpu_thread_z(ctx);
	if (!arrive(&b, egpu_start_time(ctx), now, lanes(egpu_active_mask(ctx)), thread))
		return 0;
	bpf_ringbuf_output(&blocks, &b, sizeof(b), 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
