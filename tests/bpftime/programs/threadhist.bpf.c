/* 5, the shape of threadhist: a count for each thread. */
#include "examples.h"

MAP(call_count, 1502, 1);

SEC("kretprobe/" VADD "")
int cuda__leave(void)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&call_count, &key);

	if (count)
		*count += 1;
	return 0;
}
