// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Every thread counts itself twice in values of its own: as each thread of a launch has its number, the
 * values are known thread by thread. */
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_GPU_PER_THREAD_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} idiom SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_GPU_PER_THREAD_HOST_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} update SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_GPU_HOST_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} beyond SEC(".maps");

SEC("kretprobe/*")
int count(struct egpu_ctx *ctx __attribute__((unused)))
{
	__u32 zero = 0, one = 1, next;
	__u64 *value = bpf_map_lookup_elem(&idiom, &one);
	__u32 *old = bpf_map_lookup_elem(&update, &zero);

	if (value && old) {
		*value += 1;
		next = *old + 1;
		bpf_map_update_elem(&update, &zero, &next, BPF_ANY);
	} else {
		value = bpf_map_lookup_elem(&beyond, &zero);
		if (value)
			__sync_fetch_and_add(value, 1);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
