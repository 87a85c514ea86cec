// SPDX-License-Identifier: Apache-2.0 OR MIT
/* What every thread of every kernel does to hash maps, so that their totals are known whatever the
 * order: count by a key that many threads share; insert and delete the same few keys again and again;
 * fill a map that is too small. */
#include "egpu.bpf.h"

enum { KEYS = 1000, FEW = 200, ROOM = 100, PLACES = 50, RECENT = 200 };
enum { THREADS, WON, LOST, INSERTED, PRESENT, DELETED, ABSENT, FILLED, REFUSED, KEPT, BUSY, OTHER, RESULTS };

struct wide_key {
	__u32 number;
	__u32 twice;
	__u64 square;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KEYS);
	__type(key, struct wide_key);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_GPU_HASH);
	__uint(max_entries, FEW);
	__type(key, __u32);
	__type(value, __u64);
} churn SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ROOM);
	__type(key, __u64);
	__type(value, __u64[2]);
} small SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, RECENT);
	__type(key, __u64);
	__type(value, __u64[2]);
} recent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, PLACES);
	__type(key, __u32);
	__type(value, __u64);
} per_sm SEC(".maps");

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
	__u32 number = id * 2654435761u % KEYS;
	struct wide_key key = {number, 2 * number, (__u64)number * number};
	__u64 zero = 0, one = 1, *value;
	long answer;

	note(THREADS);
	answer = bpf_map_update_elem(&counts, &key, &zero, BPF_NOEXIST);
	note(answer == 0 ? WON : answer == -17 ? LOST : OTHER);
	value = bpf_map_lookup_elem(&counts, &key);
	if (value)
		__sync_fetch_and_add(value, 1);

	__u32 few = id % FEW;
	answer = bpf_map_update_elem(&churn, &few, &one, BPF_NOEXIST);
	note(answer == 0 ? INSERTED : answer == -17 ? PRESENT : OTHER);
	if (id & 256) {
		answer = bpf_map_delete_elem(&churn, &few);
		note(answer == 0 ? DELETED : answer == -2 ? ABSENT : OTHER);
	}

	__u32 place = number % PLACES;
	bpf_map_update_elem(&per_sm, &place, &zero, BPF_NOEXIST);
	value = bpf_map_lookup_elem(&per_sm, &place);
	if (value)
		*value += 1;

	__u64 pair[2] = {3 * id, 3 * id};
	answer = bpf_map_update_elem(&small, &id, pair, BPF_ANY);
	note(answer == 0 ? FILLED : answer == -7 ? REFUSED : OTHER);
	if (!(id & 3)) {
		answer = bpf_map_update_elem(&recent, &id, pair, BPF_ANY);
		note(answer == 0 ? KEPT : answer == -16 ? BUSY : OTHER);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
