/* Ours: the GPU would have to see what Linux adds, so this is refused. */
#include "examples.h"

struct {
	__uint(type, 1504);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} call_count SEC(".maps");
MAP(copied, 1503, 1);

SEC("kprobe/" VADD)
int cuda__enter(void)
{
	__u32 one = 1, zero = 0;
	__u64 *count = bpf_map_lookup_elem(&call_count, &one);

	if (count)
		bpf_map_update_elem(&copied, &zero, count, BPF_ANY);
	return 0;
}

SEC("uretprobe")
int launched(void)
{
	__u32 key = 1;
	__u64 *count = bpf_map_lookup_elem(&call_count, &key);

	if (count)
		__atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
	return 0;
}
