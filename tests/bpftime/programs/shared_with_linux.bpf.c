/* 6, the shape of threadhist-gpu-kernel-shared-map: one map of the GPU and of Linux. */
#include "examples.h"

struct {
	__uint(type, 1504);
	__uint(max_entries, 2);
	__uint(map_flags, 1 << 10); /* BPF_F_MMAPABLE */
	__type(key, __u32);
	__type(value, __u64);
} call_count SEC(".maps");

SEC("kretprobe/cuda_" VADD)
int cuda__leave(void)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&call_count, &key);

	if (count)
		__atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
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
