/* 2, the shape of cudagraph: launches, plain or replayed, by their first thread. */
#include "examples.h"

MAP(start_ts, BPF_MAP_TYPE_HASH, 1024);
MAP(total_time_ns, BPF_MAP_TYPE_HASH, 1024);
MAP(call_count, BPF_MAP_TYPE_HASH, 1024);

SEC("kprobe/" VADD)
int cuda__probe(void)
{
	__u32 key = pid();
	__u64 now = bpf_get_globaltimer();

	if (is_leader())
		bpf_map_update_elem(&start_ts, &key, &now, BPF_ANY);
	return 0;
}

SEC("kretprobe/" VADD)
int cuda__retprobe(void)
{
	__u32 key = pid();
	__u64 now = bpf_get_globaltimer();

	if (!is_leader())
		return 0;
	__u64 *start = bpf_map_lookup_elem(&start_ts, &key);
	if (start)
		add(&total_time_ns, key, now - *start);
	bpf_map_delete_elem(&start_ts, &key);
	add(&call_count, key, 1);
	return 0;
}
