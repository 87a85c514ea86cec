/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An array of totals to which all threads add; TOTALS says how many. */
#pragma once
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TOTALS);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

static __always_inline void add(__u32 which, __u64 amount)
{
	__u64 *total = bpf_map_lookup_elem(&totals, &which);

	if (total)
		__atomic_fetch_add(total, amount, __ATOMIC_RELAXED);
}
