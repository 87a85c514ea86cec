// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Walks over a hash map while other threads insert: the first thread of each block finds the entry that it
 * inserted, once, and no entry half-written. */
#include "egpu.bpf.h"

#define KEYS 200

/* 0: walks, 1: walks that found their entry once, 2: entries torn, 3: walks of too many entries */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} results SEC(".maps");

struct pair {
	__u64 first;
	__u64 second;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KEYS);
	__type(key, __u64);
	__type(value, struct pair);
} table SEC(".maps");

struct walk {
	__u64 own;
	__u64 found;
	__u64 torn;
};

static __always_inline void add(__u32 key, __u64 number)
{
	__u64 *value = bpf_map_lookup_elem(&results, &key);

	if (value)
		*value += number;
}

static long look(void *map __attribute__((unused)), __u64 *key, struct pair *value, struct walk *walk)
{
	walk->found += *key == walk->own;
	walk->torn += value->first != 3 * *key || value->second != 3 * *key;
	return 0;
}

SEC("kprobe.block/*")
int walks(struct egpu_ctx *ctx)
{
	struct walk walk = {.own = ctx->block_x % KEYS};
	struct pair pair = {3 * walk.own, 3 * walk.own};
	long seen;

	bpf_map_update_elem(&table, &walk.own, &pair, BPF_NOEXIST);
	seen = bpf_for_each_map_elem(&table, look, &walk, 0);
	add(0, 1);
	if (walk.found == 1)
		add(1, 1);
	if (walk.torn)
		add(2, walk.torn);
	if (seen < 1 || seen > KEYS)
		add(3, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
