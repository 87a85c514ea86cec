/* 14, the shape of threadscheduling_dynamic_hook: where each thread ran. */
#include "examples.h"

struct where {
	struct xyz block, thread;
	__u64 sm, warp, lane, time;
};

struct {
	__uint(type, 1501);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct where);
} thread_mapping SEC(".maps");
MAP(sm_histogram, 1501, 256); /* 128 in the original: a device may have more */
MAP(warp_histogram, 1501, 1024);

SEC("kprobe/" VADD_N)
int cuda__where(void)
{
	struct where where = {};
	struct xyz shape;

	bpf_get_block_idx(&where.block.x, &where.block.y, &where.block.z);
	bpf_get_thread_idx(&where.thread.x, &where.thread.y, &where.thread.z);
	bpf_get_block_dim(&shape.x, &shape.y, &shape.z);
	where.sm = bpf_get_sm_id();
	where.warp = bpf_get_warp_id();
	where.lane = bpf_get_lane_id();
	where.time = bpf_get_globaltimer();
	__u32 key = where.block.x * shape.x + where.thread.x;
	bpf_map_update_elem(&thread_mapping, &key, &where, BPF_ANY);
	add(&sm_histogram, where.sm, 1);
	add(&warp_histogram, where.warp, 1);
	return 0;
}
