/* 9, the shape of gpu_shared_map: one counter of all threads, and a hash by process. */
#include "examples.h"

MAP(counter, 1503, 1);
MAP(counter_per_thread, 1501, 2);

SEC("kprobe/" VADD)
int cuda__enter(void)
{
	if (is_leader()) {
		char format[] = "gpu_update_kprobe %lu\n";
		print(format, sizeof(format), (__u64)0);
	}
	return 0;
}

SEC("kretprobe/" VADD)
int cuda__leave(void)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&counter, &key);

	/* Look-up and update in the original: 1 to 10 of 10 threads count. */
	if (count)
		__sync_fetch_and_add(count, 1);
	add(&counter_per_thread, pid(), 1);
	if (is_leader()) {
		char format[] = "gpu_update %lu\n";
		print(format, sizeof(format), (__u64)0);
	}
	return 0;
}
