/* 3, the shape of kernel_trace: one record of 56 bytes for each launch, from its first thread. */
#include "examples.h"

struct event {
	struct xyz block, thread;
	__u64 time;
};

struct {
	__uint(type, 1527);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, struct event);
} events SEC(".maps");

SEC("kprobe/" VADD_N)
int cuda__trace(void)
{
	struct event event = {};

	bpf_get_block_idx(&event.block.x, &event.block.y, &event.block.z);
	bpf_get_thread_idx(&event.thread.x, &event.thread.y, &event.thread.z);
	if (event.block.x | event.block.y | event.block.z | event.thread.x | event.thread.y |
	    event.thread.z)
		return 0;
	event.time = bpf_get_globaltimer();
	output(NULL, &events, 0, &event, sizeof(event));
	return 0;
}
