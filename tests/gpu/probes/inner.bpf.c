// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Threads count in one of several maps, chosen by their number: arrays, per-SM arrays, hash maps. */
#include "egpu.bpf.h"

#define INNER(name, kind)             \
	struct name {                 \
		__uint(type, kind);   \
		__uint(max_entries, 8); \
		__type(key, __u32);   \
		__type(value, __u64); \
	}

INNER(array, BPF_MAP_TYPE_ARRAY) array_a SEC(".maps"), array_b SEC(".maps"), array_c SEC(".maps");
INNER(per_sm, BPF_MAP_TYPE_PERCPU_ARRAY) per_sm_a SEC(".maps"), per_sm_b SEC(".maps");
INNER(table, BPF_MAP_TYPE_HASH) table_a SEC(".maps"), table_b SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 5);
	__type(key, __u32);
	__array(values, struct array);
} arrays SEC(".maps") = {
	.values = {[0] = (void *)&array_a, [1] = (void *)&array_b, [3] = (void *)&array_c},
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct per_sm);
} per_sms SEC(".maps") = {
	.values = {(void *)&per_sm_a, (void *)&per_sm_b},
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct table);
} tables SEC(".maps") = {
	.values = {(void *)&table_a, (void *)&table_b},
};

SEC("kprobe/*")
int choose(struct egpu_ctx *c)
{
	__u64 id = ((__u64)c->block_y * c->grid_x + c->block_x) * c->block_dim_x * c->block_dim_y +
		   (__u64)c->thread_y * c->block_dim_x + c->thread_x;
	__u32 which = id % 5, key = id % 7;
	__u64 zero = 0, *value;
	void *inner = bpf_map_lookup_elem(&arrays, &which);

	if (inner) {
		value = bpf_map_lookup_elem(inner, &key);
		if (value)
			__sync_fetch_and_add(value, 1);
	}
	which = id & 1;
	inner = bpf_map_lookup_elem(&per_sms, &which);
	if (inner) {
		value = bpf_map_lookup_elem(inner, &key);
		if (value)
			*value += 1;
	}
	which = id & 3;
	inner = bpf_map_lookup_elem(&tables, &which);
	if (inner) {
		bpf_map_update_elem(inner, &key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(inner, &key);
		if (value)
			__sync_fetch_and_add(value, 1);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
