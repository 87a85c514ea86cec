/* 16, the shape of the cutlass example: launches of a kernel with a long name, by their first
 * thread. */
#include "examples.h"

MAP(cutlass_call_count, 1503, 1);

SEC("kretprobe/_ZN5tiles8simtGemmIfLi16ELi16ELi16ELb0EEEvNS_9ArgumentsIT_NS_5ShapeIXT0_EXT1_EXT2_"
    "EEEXT3_EEE")
int cuda__leave(void)
{
	__u32 key = 0;

	if (!is_leader())
		return 0;
	__u64 *count = bpf_map_lookup_elem(&cutlass_call_count, &key);
	if (count) /* look-up and update in the original */
		__sync_fetch_and_add(count, 1);
	return 0;
}
