// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Entry and exit counted per SM: every thread adds one. */
#ifndef KERNELS
#define KERNELS "*_probed"
#endif
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &which);

	if (value)
		*value += 1;
}

SEC("kprobe/" KERNELS)
int entered(struct egpu_ctx *ctx __attribute__((unused)))
{
	count(0);
	return 0;
}

SEC("kretprobe/" KERNELS)
int left(struct egpu_ctx *ctx __attribute__((unused)))
{
	count(1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
