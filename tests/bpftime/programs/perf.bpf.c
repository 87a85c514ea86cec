/* Ours: a perf event array, read by libbpf's perf buffer. */
#include "examples.h"

struct event {
	__u64 thread;
	__u32 tail[3];
	__u32 last;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} events SEC(".maps");

SEC("kprobe/" VADD)
int cuda__send(struct pt_regs *ctx)
{
	struct xyz block, thread, shape;
	struct event event = {};

	bpf_get_block_idx(&block.x, &block.y, &block.z);
	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	bpf_get_block_dim(&shape.x, &shape.y, &shape.z);
	event.thread = block.x * shape.x + thread.x;
	event.last = event.thread + 1;
	output(ctx, &events, 0xffffffff /* BPF_F_CURRENT_CPU */, &event, sizeof(event));
	return 0;
}
