// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The hash maps of bpftime's micro-benchmark: every thread has the same key. */
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} hash_map SEC(".maps");

#define PROBE(section, name) \
	SEC(section)         \
	int name(struct egpu_ctx *c __attribute__((unused)))

PROBE("kprobe/hash_update", hash_update)
{
	__u32 key = 0;
	__u64 value = 1;

	bpf_map_update_elem(&hash_map, &key, &value, BPF_ANY);
	return 0;
}

PROBE("kprobe/hash_lookup", hash_lookup)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&hash_map, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

PROBE("kprobe/hash_delete", hash_delete)
{
	__u32 key = 0;

	bpf_map_delete_elem(&hash_map, &key);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
