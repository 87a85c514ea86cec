// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A loop that ends by what its callbacks sum up: Linux walks it call by call. */
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

static long inner(void *map, __u32 *key, __u64 *value, __u64 *sum)
{
	*sum += *key;
	return 0;
}

static long outer(__u32 turn, __u64 *sum)
{
	bpf_for_each_map_elem(&hits, inner, sum, 0);
	return *sum > 1000;
}

SEC("kprobe/*")
int sums_until_it_is_enough(struct egpu_ctx *ctx)
{
	__u64 sum = 0;
	__u32 key = 3;
	__u64 *value;

	bpf_loop(20, outer, &sum, 0);
	value = bpf_map_lookup_elem(&hits, &key);
	if (value)
		*value += sum;
	return 0;
}
