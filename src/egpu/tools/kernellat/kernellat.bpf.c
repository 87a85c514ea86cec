// SPDX-License-Identifier: Apache-2.0 OR MIT
/* kernellat: how long blocks and launches take, added up where they end.
 *
 * Each group of lanes that leaves together arrives at its block; the group that completes the block
 * (its lanes sum to the block's threads) knows the block's time, counts it and arrives at the launch.
 * The block that completes the launch counts the launch's time.  A launch is met in parts of which
 * each sees 1 of 1024 blocks, and in groups of these, so that few add to one address at a time.
 *
 * Nothing waits: what is given up is counted in `lost` and stays incomplete.
 */
#include "../meeting.h"

#define MAX_KERNELS 256
#define COPIES 4 /* of a kernel's times, so that SMs do not queue up */
#define PARTS 10 /* of a launch: 2^10 */
#define GROUPS 5 /* of its parts: 2^5 */
#define SLOTS (1 << 17)
#define BUCKETS 1152 /* values below 64 exactly, then 32 an octave, up to 2^40 */
#define LONGEST ((1ull << 40) - 1)

/* Blocks to measure: 1 of this many; 1 is all.  Launches are measured only with all. */
volatile const __u32 every = 1;

enum { BLOCK, PART, GROUP, LAUNCH };

/* Where the groups of a block, the blocks of a part or the parts of a launch meet. */
struct meeting {
	__u64 key;   /* launch, level and index; 0: free */
	__u64 early; /* ~ of the first entry, so that 0 is no time yet */
	__u64 late;  /* last exit */
	__u64 count; /* of those that arrived */
	__u32 kernel;
	__u32 level;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct meeting);
} meetings SEC(".maps");

struct times {
	__u64 sum;
	__u64 least; /* ~ of it */
	__u64 most;
	__u64 bucket[BUCKETS];
};

/* By kernel; blocks, then launches; by copy. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_KERNELS * 2 * COPIES);
	__type(key, __u32);
	__type(value, struct times);
} times SEC(".maps");

struct lost {
	__u64 crowded;   /* arrivals that found no slot */
	__u64 unsettled; /* none: reports have a figure for it */
	__u64 oversized; /* groups in grids of 2^32 blocks or more */
	__u64 overflow;  /* groups of kernels beyond the last row */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lost);
} lost SEC(".maps");

/* What arrives, and how much of what. */
struct arrival {
	__u64 early;
	__u64 late;
	__u64 launch;
	__u32 index;
	__u32 kernel;
	__u32 amount;
	__u32 expected;
};

/* Relaxed and without a result: one reduction, no fence. */
static __always_inline void add(__u64 *sum, __u64 amount)
{
	__atomic_fetch_add(sum, amount, __ATOMIC_RELAXED);
}

/* All bits where `value` is negative, none where not; for choices without a branch. */
static __always_inline __u64 negative(__s64 value)
{
	OPAQUE(value);
	value >>= 63;
	OPAQUE(value);
	return value;
}

static __always_inline struct lost *losses(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&lost, &first);
}

/* The slot of `key`: it has two, the second is used while something else meets in the first.  Whoever
 * comes later must find the same one, so it looks at the second before it takes the first.  Who takes
 * a slot says `what` it is for. */
static __always_inline struct meeting *meet(__u64 key, __u32 first, __u64 what)
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
	if (!was)
		egpu_atomic_max((__u64 *)&one->kernel, what); /* both words, which are 0 */
	return one;
}

/* True for the arrival that completes `level`; then early and late are those of all.
 *
 * Atomics with a result are ordered (RFC 9669), so who sees the last count sees every time. */
static __always_inline int arrive(struct arrival *a, __u64 level)
{
	struct meeting *m;
	__u64 key;

	if (a->amount == a->expected)
		return 1;
	key = 1ull << 63 | a->launch << 34 | level << 32 | a->index; /* never 0 */
	m = meet(key, a->index + (__u32)(key >> 32) * 0x9e3779b1, level << 32 | a->kernel);
	if (!m) {
		struct lost *l = losses();

		if (l)
			add(&l->crowded, 1);
		return 0;
	}
	egpu_atomic_max(&m->early, a->early);
	egpu_atomic_max(&m->late, a->late);
	if (__sync_fetch_and_add(&m->count, a->amount) + a->amount != a->expected)
		return 0;
	a->early = __sync_lock_test_and_set(&m->early, 0);
	a->late = __sync_lock_test_and_set(&m->late, 0);
	m->count = 0;
	*(__u64 *)&m->kernel = 0;
	__sync_lock_test_and_set(&m->key, 0);
	return 1;
}

/* Below 64 the value itself, then 32 buckets an octave. */
static __always_inline __u32 bucket_of(__u64 value)
{
	__u32 shift = egpu_log2(value | 32) - 5;

	return shift * 32 + (__u32)(value >> shift);
}

static __always_inline void count(const struct arrival *a, __u32 what, __u32 sm)
{
	__u32 key = (a->kernel * 2 + what) * COPIES + sm % COPIES, bucket;
	struct times *row = bpf_map_lookup_elem(&times, &key);
	__u64 duration = a->late - ~a->early, inverse;

	if (!row)
		return;
	/* At most LONGEST: what is above it has a bit there. */
	duration = (duration | negative(-(__s64)(duration >> 40))) & LONGEST;
	inverse = ~duration;
	OPAQUE(inverse);
	add(&row->sum, duration);
	/* Most durations change neither, and need no atomic to know. */
	if (row->least < inverse)
		egpu_atomic_max(&row->least, inverse);
	if (~row->most > inverse)
		egpu_atomic_max(&row->most, duration);
	bucket = bucket_of(duration);
	if (bucket < BUCKETS) /* as it always is */
		add(&row->bucket[bucket], 1);
}

SEC("kretprobe.warp/*")
int leave(void *ctx)
{
	__u64 now = egpu_globaltimer(ctx);
	__u64 plane = (__u64)egpu_grid_x(ctx) * egpu_grid_y(ctx); /* below 2^47 */
	__u64 blocks = plane * egpu_grid_z(ctx);                  /* below 2^63 */
	__u32 sm = egpu_sm(ctx), block, sample, parts;
	__u64 level;
	struct arrival a;

	a.kernel = egpu_kernel_id(ctx);
	if (blocks >> 32 || a.kernel >= MAX_KERNELS) {
		struct lost *l = losses();

		if (l)
			add(blocks >> 32 ? &l->oversized : &l->overflow, 1);
		return 0;
	}
	block = (__u32)(egpu_block_z(ctx) * plane + (__u64)egpu_block_y(ctx) * egpu_grid_x(ctx) +
			egpu_block_x(ctx));
	a.launch = egpu_launch_id(ctx);
	sample = (block + (__u32)a.launch * 0x9e3779b1) * 0x85ebca6b;
	sample ^= sample >> 15;
	sample *= 0xc2b2ae35;
	if ((__u64)sample * every >> 32)
		return 0;
	a.early = ~egpu_start_time(ctx);
	a.late = now;
	a.index = block;
	a.amount = lanes(egpu_active_mask(ctx));
	a.expected = egpu_block_dim_x(ctx) * egpu_block_dim_y(ctx) * egpu_block_dim_z(ctx);
	parts = (__u32)blocks;
#pragma clang loop unroll(disable)
	for (level = BLOCK;; level++) {
		__u32 width;
		__s64 more;

		OPAQUE(level); /* one variable, not one for each of its multiples */
		if (!arrive(&a, level))
			return 0;
		if (level == BLOCK || level == LAUNCH)
			count(&a, level >> 1, sm);
		if (every != 1 || level >= LAUNCH)
			return 0;
		/* Of what arrives at the next level, the part of this width meets in one place. */
		width = (PARTS | GROUPS << 8) >> 8 * level & 31;
		a.amount = 1;
		a.index &= (1u << width) - 1;
		a.expected = ((parts - 1 - a.index) >> width) + 1;
		more = (__s64)parts - (1u << width);
		parts -= more & ~negative(more);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
