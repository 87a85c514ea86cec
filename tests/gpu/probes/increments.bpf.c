// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Every thread adds one in three ways that must agree: the plain idiom on a per-SM map, an atomic on a
 * shared map, and an atomic on a per-SM map. */
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} per_sm SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} shared SEC(".maps");

SEC("kprobe/many")
int increment(struct egpu_ctx *ctx __attribute__((unused)))
{
	__u32 plain = 0, atomic = 1, zero = 0;
	__u64 *value = bpf_map_lookup_elem(&per_sm, &plain);

	if (value)
		*value += 1;
	value = bpf_map_lookup_elem(&per_sm, &atomic);
	if (value)
		__sync_fetch_and_add(value, 1);
	value = bpf_map_lookup_elem(&shared, &zero);
	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
