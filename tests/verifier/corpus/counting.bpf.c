// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Counters, histograms and configuration, as probes count. */
#include "egpu.bpf.h"

#define SLOTS 64

struct row {
	__u64 count;
	__u64 total;
	__u32 flags;
	__u32 last;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} cells SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32[SLOTS]);
} histogram SEC(".maps");

const volatile __u32 wanted_kernel = 3;
const volatile __u64 threshold = 1000;
const volatile bool by_block;
__u64 total;
__u64 seen = 1;
__u64 table[16];

static __always_inline void bump(__u64 *place, __u64 by)
{
	__sync_fetch_and_add(place, by);
}

static __always_inline __u32 log2_u32(__u32 v)
{
	__u32 r, shift;

	r = (v > 0xffff) << 4;
	v >>= r;
	shift = (v > 0xff) << 3;
	v >>= shift;
	r |= shift;
	shift = (v > 0xf) << 2;
	v >>= shift;
	r |= shift;
	shift = (v > 0x3) << 1;
	v >>= shift;
	r |= shift;
	r |= v >> 1;
	return r;
}

static __always_inline __u32 log2_u64(__u64 v)
{
	__u32 high = v >> 32;

	return high ? log2_u32(high) + 32 : log2_u32(v);
}

#define PROBE(name) SEC("kprobe/*") int name(struct egpu_ctx *ctx)

PROBE(count_all) { bump(&total, 1); return 0; }

PROBE(count_in_array)
{
	__u32 key = 5;
	__u64 *cell = bpf_map_lookup_elem(&cells, &key);

	if (cell)
		bump(cell, 1);
	return 0;
}

PROBE(count_by_sm)
{
	__u32 key = bpf_get_smp_processor_id();
	__u64 *cell = bpf_map_lookup_elem(&cells, &key);

	if (!cell)
		return 0;
	bump(cell, 1);
	return 0;
}

PROBE(per_sm_row)
{
	__u32 key = ctx->kernel_id;
	struct row *row = bpf_map_lookup_elem(&rows, &key);

	if (!row)
		return 0;
	row->count++;
	row->total += ctx->lane;
	row->flags |= 1 << (ctx->lane & 31);
	return 0;
}

PROBE(histogram_of_lanes)
{
	__u32 key = 0;
	__u32 *slots = bpf_map_lookup_elem(&histogram, &key);

	if (slots)
		__sync_fetch_and_add(&slots[ctx->lane], 1);
	return 0;
}

PROBE(histogram_log2)
{
	__u32 key = 0;
	__u32 *slots = bpf_map_lookup_elem(&histogram, &key);
	__u32 slot = log2_u64(ctx->globaltimer);

	if (!slots)
		return 0;
	if (slot >= SLOTS)
		slot = SLOTS - 1;
	__sync_fetch_and_add(&slots[slot], 1);
	return 0;
}

PROBE(histogram_linear)
{
	__u32 key = 0;
	__u32 *slots = bpf_map_lookup_elem(&histogram, &key);
	__u64 slot = ctx->param[0] / 1000;

	if (slots && slot < SLOTS)
		__sync_fetch_and_add(&slots[slot], 1);
	return 0;
}

PROBE(histogram_clamped)
{
	__u64 slot = bpf_ktime_get_ns() >> 20;

	if (slot > 15)
		slot = 15;
	bump(&table[slot], 1);
	return 0;
}

PROBE(histogram_masked) { bump(&table[ctx->clock & 15], ctx->lane); return 0; }

PROBE(histogram_of_key)
{
	__u32 key = log2_u32(ctx->block_x);
	__u64 *cell = bpf_map_lookup_elem(&cells, &key);

	if (cell)
		bump(cell, 1);
	return 0;
}

PROBE(only_wanted)
{
	if (ctx->kernel_id != wanted_kernel)
		return 0;
	bump(&total, 1);
	return 0;
}

PROBE(configured)
{
	__u32 key = by_block ? ctx->block_x : ctx->thread_x;
	__u64 *cell = bpf_map_lookup_elem(&cells, &key);

	if (cell && ctx->param[1] > threshold)
		bump(cell, ctx->param[1]);
	return 0;
}

PROBE(once)
{
	if (__sync_val_compare_and_swap(&seen, 1, 0) == 1)
		bump(&total, 1000);
	return 0;
}

PROBE(exchange)
{
	__u64 old = __sync_lock_test_and_set(&table[3], ctx->launch_id);

	if (old > threshold)
		bump(&table[4], old);
	return 0;
}

PROBE(bits)
{
	__sync_fetch_and_or(&table[0], 1ULL << (ctx->lane & 63));
	__sync_fetch_and_and(&table[1], ~(1ULL << ctx->lane));
	__sync_fetch_and_xor(&table[2], ctx->lane);
	return 0;
}

PROBE(two_lookups)
{
	__u32 first = 0, second = 1;
	__u64 *a = bpf_map_lookup_elem(&cells, &first);
	__u64 *b = bpf_map_lookup_elem(&cells, &second);

	if (!a || !b)
		return 0;
	bump(a, 1);
	bump(b, *a);
	return 0;
}

PROBE(nested_lookup)
{
	__u32 key = 0;
	__u64 *a = bpf_map_lookup_elem(&cells, &key);

	if (!a)
		return 0;
	key = *a;
	a = bpf_map_lookup_elem(&cells, &key);
	if (a)
		bump(a, 1);
	return 0;
}

PROBE(update_row)
{
	__u32 key = ctx->sm & (SLOTS - 1);
	struct row fresh = { .count = 1, .last = ctx->kernel_id };

	return bpf_map_update_elem(&rows, &key, &fresh, BPF_ANY);
}

PROBE(delete_row)
{
	__u32 key = 2;

	bpf_map_delete_elem(&cells, &key);
	return 0;
}

PROBE(averages)
{
	__u64 n = ctx->grid_x, sum = ctx->param[2];

	bump(&total, n ? sum / n : 0);
	bump(&table[5], sum % (n + 1));
	return 0;
}
char LICENSE[] SEC("license") = "Dual MIT/GPL";
