// SPDX-License-Identifier: Apache-2.0 OR MIT
/* What every thread of every kernel does to hash maps, so that their totals are known whatever the
 * order: count by a key that many threads share; insert and delete the same few keys again and again;
 * fill a map that is too small. */
#include "egpu.bpf.h"

/* Which of the maps; the other hash_*.bpf.c have one each. */
#ifndef PARTS
#define PARTS (COUNTS | CHURN | SMALL | RECENT | PER_SM)
#endif
#define COUNTS 1
#define CHURN 2
#define SMALL 4
#define RECENT 8
#define PER_SM 16
#define ROOMY 32

enum { KEYS = 1000, FEW = 200, ROOM = 100, PLACES = 50, LATEST = 200 };
enum { THREADS, WON, LOST, INSERTED, PRESENT, DELETED, ABSENT, FILLED, REFUSED, KEPT, BUSY, OTHER, FITTED, AGAIN, RESULTS };

struct wide_key {
	__u32 number;
	__u32 twice;
	__u64 square;
};

#if PARTS & COUNTS
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KEYS);
	__type(key, struct wide_key);
	__type(value, __u64);
} counts SEC(".maps");
#endif

#if PARTS & CHURN
struct {
	__uint(type, BPF_MAP_TYPE_GPU_HASH);
	__uint(max_entries, FEW);
	__type(key, __u32);
	__type(value, __u64);
} churn SEC(".maps");
#endif

#if PARTS & SMALL
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ROOM);
	__type(key, __u64);
	__type(value, __u64[2]);
} small SEC(".maps");
#endif

#if PARTS & RECENT
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LATEST);
	__type(key, __u64);
	__type(value, __u64[2]);
} recent SEC(".maps");
#endif

#if PARTS & ROOMY
struct { /* has room for every key, and no more: nothing is to be evicted */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, KEYS);
	__type(key, __u32);
	__type(value, __u64);
} roomy SEC(".maps");
#endif

#if PARTS & PER_SM
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, PLACES);
	__type(key, __u32);
	__type(value, __u64);
} per_sm SEC(".maps");
#endif

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, RESULTS);
	__type(key, __u32);
	__type(value, __u64);
} results SEC(".maps");

static __always_inline void note(__u32 what)
{
	__u64 *value = bpf_map_lookup_elem(&results, &what);

	if (value)
		*value += 1;
}

SEC("kprobe/*")
int mix(struct egpu_ctx *c)
{
	__u64 id = ((__u64)c->block_y * c->grid_x + c->block_x) * c->block_dim_x * c->block_dim_y +
		   (__u64)c->thread_y * c->block_dim_x + c->thread_x;
	__u32 number __attribute__((unused)) = id * 2654435761u % KEYS;
	__u64 zero __attribute__((unused)) = 0, *value __attribute__((unused));
	long answer __attribute__((unused));

	note(THREADS);
#if PARTS & COUNTS
	struct wide_key key = {number, 2 * number, (__u64)number * number};

	answer = bpf_map_update_elem(&counts, &key, &zero, BPF_NOEXIST);
	note(answer == 0 ? WON : answer == -17 ? LOST : OTHER);
	value = bpf_map_lookup_elem(&counts, &key);
	if (value)
		__sync_fetch_and_add(value, 1);
#endif
#if PARTS & CHURN
	__u32 few = id % FEW;
	__u64 one = 1;

	answer = bpf_map_update_elem(&churn, &few, &one, BPF_NOEXIST);
	note(answer == 0 ? INSERTED : answer == -17 ? PRESENT : OTHER);
	if (id & 256) {
		answer = bpf_map_delete_elem(&churn, &few);
		note(answer == 0 ? DELETED : answer == -2 ? ABSENT : OTHER);
	}
#endif
#if PARTS & PER_SM
	__u32 place = number % PLACES;

	bpf_map_update_elem(&per_sm, &place, &zero, BPF_NOEXIST);
	value = bpf_map_lookup_elem(&per_sm, &place);
	if (value)
		*value += 1;
#endif
#if PARTS & ROOMY
	answer = bpf_map_update_elem(&roomy, &number, &zero, BPF_NOEXIST);
	note(answer == 0 ? FITTED : answer == -17 ? AGAIN : answer == -16 ? BUSY : OTHER);
	value = bpf_map_lookup_elem(&roomy, &number);
	if (value)
		__sync_fetch_and_add(value, 1);
#endif
#if PARTS & (SMALL | RECENT)
	__u64 pair[2] = {3 * id, 3 * id};
#endif
#if PARTS & SMALL
	answer = bpf_map_update_elem(&small, &id, pair, BPF_ANY);
	note(answer == 0 ? FILLED : answer == -7 ? REFUSED : OTHER);
#endif
#if PARTS & RECENT
	if (!(id & 3)) {
		answer = bpf_map_update_elem(&recent, &id, pair, BPF_ANY);
		note(answer == 0 ? KEPT : answer == -16 ? BUSY : OTHER);
	}
#endif
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
