/* Ours: bpftime's trace stub, which an entry probe takes the place of; a 3-D launch by name list. */
#include "examples.h"

MAP(calls, 1503, 2);
MAP(planes, 1501, 64); /* lanes of a warp enter it at once from a 3-D block */

static __always_inline int count(__u32 key)
{
	__u64 *value = bpf_map_lookup_elem(&calls, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

SEC("kprobe/_Z10tracedLoopPfi,_Z6raggedPfi")
int cuda__call(void)
{
	return count(0);
}

SEC("kretprobe/_Z6raggedPfi,_Z10tracedLoopPfi")
int cuda__leave(void)
{
	struct xyz block, thread, shape;

	bpf_get_block_idx(&block.x, &block.y, &block.z);
	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	bpf_get_block_dim(&shape.x, &shape.y, &shape.z);
	add(&planes, block.z * shape.z + thread.z, 1);
	return count(1);
}
