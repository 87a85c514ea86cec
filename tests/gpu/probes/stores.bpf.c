// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Every thread stores the same, and goes on at once: the store is the last thing that the probe does. */
#include "egpu.bpf.h"

enum { STORED = 0x5e1f };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} stored SEC(".maps");

SEC("kprobe/*")
int store(struct egpu_ctx *c __attribute__((unused)))
{
	__u32 one = 1;
	__u64 *value = bpf_map_lookup_elem(&stored, &one);

	if (value)
		*value = STORED;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
