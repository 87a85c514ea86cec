/* 12, the shape of atomizer: only the blocks of one partition run, the others end at once. */
#include "examples.h"

static long (*end_thread)(void) = (void *)507;

MAP(partition_num_map, 1503, 1);
MAP(partition_index_map, 1503, 1);

SEC("kprobe/" VADD)
int cuda__choose(void)
{
	struct xyz block, grid;
	__u32 key = 0;
	__u64 *parts = bpf_map_lookup_elem(&partition_num_map, &key);
	__u64 *part = bpf_map_lookup_elem(&partition_index_map, &key);

	bpf_get_block_idx(&block.x, &block.y, &block.z);
	bpf_get_grid_dim(&grid.x, &grid.y, &grid.z);
	if (!parts || !part || !*parts)
		return 0;
	__u64 count = *parts, index = *part;
	__u64 low = grid.x * index / count, high = grid.x * (index + 1) / count;
	if (block.x < low || block.x >= high) {
		char format[] = "Exited: L=%lu, H=%lu\n";
		print(format, sizeof(format), low, high);
		end_thread();
	}
	char format[] = "Enter %lu\n";
	print(format, sizeof(format), block.x);
	return 0;
}
