/* Ours: not safe, so a loader is told that it cannot be loaded. */
#include "examples.h"

MAP(limit, 1503, 1);
MAP(sum, 1503, 1);

SEC("kprobe/" VADD)
int cuda__endless(void)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&limit, &zero);
	__u64 *total = bpf_map_lookup_elem(&sum, &zero);

	if (!last || !total)
		return 0;
	while (*(volatile __u64 *)last) /* nobody knows how often */
		__sync_fetch_and_add(total, 1);
	return 0;
}
