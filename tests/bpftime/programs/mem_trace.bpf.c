/* 11, the shape of mem_trace: every load and store of every kernel. */
#include "examples.h"

MAP(counter, 1503, 4);

SEC("kprobe/__memcapture")
int cuda__access(void)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&counter, &key);

	if (count) /* a plain addition in the original */
		__sync_fetch_and_add(count, 1);
	return 0;
}
