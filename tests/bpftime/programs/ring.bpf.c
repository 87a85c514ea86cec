/* Ours: a Linux ring buffer, read by libbpf through the memory that it maps. */
#include "examples.h"

struct event {
	__u64 thread, launch;
	__u32 tail[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");
MAP(dropped, 1503, 1);

SEC("kprobe/" VADD)
int cuda__send(void)
{
	struct xyz block, thread, shape;
	struct event event = {};
	__u32 zero = 0;

	bpf_get_block_idx(&block.x, &block.y, &block.z);
	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	bpf_get_block_dim(&shape.x, &shape.y, &shape.z);
	event.thread = block.x * shape.x + thread.x;
	event.tail[2] = event.thread + 1;
	if (bpf_ringbuf_output(&ring, &event, sizeof(event), 0)) {
		__u64 *lost = bpf_map_lookup_elem(&dropped, &zero);

		if (lost)
			__sync_fetch_and_add(lost, 1);
	}
	return 0;
}
