// SPDX-License-Identifier: Apache-2.0 OR MIT
/* One small thing at a time, for the kernels of bench/micro.cu. */
#include "egpu.bpf.h"

struct event {
	__u64 time;
	__u32 type, data;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 << 20);
} events SEC(".maps");

#define MAP(name, kind, entries)              \
	struct {                              \
		__uint(type, kind);           \
		__uint(max_entries, entries); \
		__type(key, __u32);           \
		__type(value, __u64);         \
	} name SEC(".maps")

MAP(array_map, BPF_MAP_TYPE_ARRAY, 1024);
MAP(call_count, BPF_MAP_TYPE_GPU_PER_THREAD_ARRAY, 1);
MAP(gpu_counter, BPF_MAP_TYPE_GPU_ARRAY, 4);
MAP(shared_counter, BPF_MAP_TYPE_GPU_KERNEL_SHARED_ARRAY, 4);

#define PROBE(section, name) \
	SEC(section)         \
	int name(struct egpu_ctx *c __attribute__((unused)))

PROBE("kprobe/empty", empty_entry) { return 0; }
PROBE("kretprobe/empty", empty_exit) { return 0; }

#define STORES                               \
	volatile __u64 first = 1, second = 2; \
	(void)first;                          \
	(void)second;                         \
	return 0

PROBE("kprobe/entry", entry) { STORES; }
PROBE("kretprobe/exit_only", exit_only) { STORES; }
PROBE("kprobe/both", both_entry) { STORES; }
PROBE("kretprobe/both", both_exit) { STORES; }

PROBE("kprobe/ring_output", ring_output)
{
	struct event event = {c->globaltimer, 1, 2};

	bpf_ringbuf_output(&events, &event, sizeof(event), 0);
	return 0;
}

PROBE("kprobe/globaltimer", globaltimer)
{
	bpf_get_globaltimer();
	return 0;
}

PROBE("kprobe/array_update", array_update)
{
	__u32 key = 1;
	__u64 value = 1;

	bpf_map_update_elem(&array_map, &key, &value, BPF_ANY);
	return 0;
}

PROBE("kprobe/array_lookup", array_lookup)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&array_map, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

PROBE("kprobe/per_thread_lookup", per_thread_lookup)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&call_count, &key);

	if (value)
		*value += 1;
	return 0;
}

/* bpftime's program reads the value, adds one and updates: that loses counts, so it is refused. */
PROBE("kretprobe/gpu_array_update", gpu_array_update)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&gpu_counter, &key), next = c->launch_id;

	if (value)
		bpf_map_update_elem(&gpu_counter, &key, &next, BPF_ANY);
	return 0;
}

PROBE("kretprobe/gpu_array_lookup", gpu_array_lookup)
{
	__u32 key = 1;
	__u64 *value = bpf_map_lookup_elem(&gpu_counter, &key);

	if (value && *value == ~0ull)
		bpf_gpu_membar(); /* so that the value is wanted */
	return 0;
}

PROBE("kretprobe/shared_array_update", shared_array_update)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&shared_counter, &key), next = c->launch_id;

	if (value)
		bpf_map_update_elem(&shared_counter, &key, &next, BPF_ANY);
	return 0;
}

PROBE("kretprobe/shared_array_lookup", shared_array_lookup)
{
	__u32 key = 1;
	__u64 *value = bpf_map_lookup_elem(&shared_counter, &key);

	if (value && *value == ~0ull)
		bpf_gpu_membar();
	return 0;
}

PROBE("insn/load/memtrace", memtrace_load) { return 0; }
PROBE("insn/store/memtrace", memtrace_store) { return 0; }

char LICENSE[] SEC("license") = "Dual MIT/GPL";
