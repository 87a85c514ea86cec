// SPDX-License-Identifier: Apache-2.0 OR MIT
/* One map operation for each thread (or warp) of the kernels of bench/maps.cu. */
#include "keys.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} one SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} spread SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} per_sm SEC(".maps");

SEC("kprobe/array_one")
int array_one(struct egpu_ctx *c __attribute__((unused)))
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&one, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

SEC("kprobe/array_spread")
int array_spread(struct egpu_ctx *c)
{
	__u32 key = thread_id(c) & 1023;
	__u64 *value = bpf_map_lookup_elem(&spread, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

SEC("kprobe/sm_thread")
int sm_thread(struct egpu_ctx *c __attribute__((unused)))
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&per_sm, &key);

	if (value)
		*value += 1;
	return 0;
}

SEC("kprobe.warp/sm_warp")
int sm_warp(struct egpu_ctx *c)
{
	__u32 key = 1, lanes = c->active_mask;
	__u64 *value = bpf_map_lookup_elem(&per_sm, &key);

	lanes -= lanes >> 1 & 0x55555555;
	lanes = (lanes & 0x33333333) + (lanes >> 2 & 0x33333333);
	lanes = (((lanes + (lanes >> 4)) & 0x0f0f0f0f) * 0x01010101u) >> 24;
	if (value)
		*value += lanes;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
