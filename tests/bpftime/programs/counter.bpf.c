/* 1, the shape of cuda-counter: calls and time of each process, every thread. */
#ifndef NAME
#define NAME(name) cuda__##name
#endif
#include "examples.h"

MAP(start_ts, BPF_MAP_TYPE_HASH, 1024);
MAP(total_time_ns, BPF_MAP_TYPE_HASH, 1024);
MAP(call_count, BPF_MAP_TYPE_HASH, 1024);

SEC("kprobe/" VADD)
int NAME(probe)(void)
{
	struct xyz block, thread;
	__u64 now = bpf_get_globaltimer();

	bpf_get_block_idx(&block.x, &block.y, &block.z);
	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	/* The original has one entry for all threads, which the first to leave deletes. */
	__u32 key = thread.x;
	bpf_map_update_elem(&start_ts, &key, &now, BPF_ANY);
	char format[] = "Entered block x=%lu\n";
	print(format, sizeof(format), block.x);
	return 0;
}

SEC("kretprobe/" VADD)
int NAME(retprobe)(void)
{
	struct xyz thread;
	__u64 now = bpf_get_globaltimer();

	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	__u32 key = thread.x;
	__u64 *start = bpf_map_lookup_elem(&start_ts, &key);
	if (!start) {
		char format[] = "Exited without a start, thread %lu\n";
		print(format, sizeof(format), thread.x);
		return 0;
	}
	/* The original adds by look-up and update, which loses what others add meanwhile. */
	add(&total_time_ns, pid(), now - *start);
	bpf_map_delete_elem(&start_ts, &key);
	add(&call_count, pid(), 1);
	char format[] = "Exited, thread %lu\n";
	print(format, sizeof(format), thread.x);
	return 0;
}
