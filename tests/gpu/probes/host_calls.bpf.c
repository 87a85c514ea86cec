// SPDX-License-Identifier: Apache-2.0 OR MIT
/* On the host, launches are numbered as they are made and as their calls return; every thread adds up
 * the numbers that it finds. */
#include "egpu.bpf.h"

enum { MADE, RETURNED, CALLS };
enum { THREADS, FOUND_MADE, FOUND_RETURNED, SUMS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CALLS);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SUMS);
	__type(key, __u32);
	__type(value, __u64);
} sums SEC(".maps");

static __always_inline int number(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&calls, &which);

	if (value)
		*value += 1;
	return 0;
}

static __always_inline void add(__u32 what, __u64 number)
{
	__u64 *value = bpf_map_lookup_elem(&sums, &what);

	if (value)
		*value += number;
}

SEC("uprobe/libcuda.so.1:cuLaunchKernel")
int made(void *context __attribute__((unused))) { return number(MADE); }

SEC("uretprobe/libcuda.so.1:cuLaunchKernel")
int returned(void *context __attribute__((unused))) { return number(RETURNED); }

SEC("kprobe/*")
int find(struct egpu_ctx *c __attribute__((unused)))
{
	__u32 key = MADE;
	__u64 *value = bpf_map_lookup_elem(&calls, &key);

	add(THREADS, 1);
	if (value)
		add(FOUND_MADE, *value);
	key = RETURNED;
	value = bpf_map_lookup_elem(&calls, &key);
	if (value)
		add(FOUND_RETURNED, *value);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
