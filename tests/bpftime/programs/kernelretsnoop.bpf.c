/* 4, the shape of kernelretsnoop: a record from each thread, smaller than the map's value. */
#include "examples.h"

struct big {
	char bytes[1024];
};

struct event {
	struct xyz thread;
	__u64 time;
};

struct {
	__uint(type, 1527);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, struct big);
} rb SEC(".maps");

SEC("kretprobe/" VADD)
int cuda__leave(void)
{
	struct event event = {};

	bpf_get_thread_idx(&event.thread.x, &event.thread.y, &event.thread.z);
	event.time = bpf_get_globaltimer();
	output(NULL, &rb, 0, &event, sizeof(event));
	return 0;
}
