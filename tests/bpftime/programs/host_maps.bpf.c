/* 10, the shape of host_map_test: maps in host memory, each thread its own key or slot. */
#include "examples.h"

MAP(perthread_counter, 1512, 10);
MAP(shared_counter, 1513, 10);
MAP(thread_timestamp, 1512, 1);

SEC("kprobe/" VADD)
int cuda__enter(void)
{
	__u32 key = 0;
	__u64 now = bpf_get_globaltimer();

	bpf_map_update_elem(&thread_timestamp, &key, &now, BPF_ANY);
	return 0;
}

SEC("kretprobe/" VADD)
int cuda__leave(void)
{
	struct xyz thread;
	__u32 calls = 0, time = 1, index = 2, own;
	__u64 now = bpf_get_globaltimer();

	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	own = thread.x;
	__u64 *shared = bpf_map_lookup_elem(&shared_counter, &own);
	if (shared)
		__sync_fetch_and_add(shared, 1);
	__u64 *count = bpf_map_lookup_elem(&perthread_counter, &calls);
	if (count)
		*count += 1;
	__u64 *start = bpf_map_lookup_elem(&thread_timestamp, &calls);
	__u64 spent = start ? now - *start : 0;
	bpf_map_update_elem(&perthread_counter, &time, &spent, BPF_ANY);
	bpf_map_update_elem(&perthread_counter, &index, &thread.x, BPF_ANY);
	return 0;
}
