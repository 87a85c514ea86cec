// SPDX-License-Identifier: Apache-2.0 OR MIT
/* One ring record of 16, 32 or 64 bytes for each thread or warp of the kernels of bench/rings.cu. */
#include "keys.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 << 20); /* a launch fits, also where one SM gets twice its share */
} ring SEC(".maps");

#define OUTPUT(level, kind, bytes)                                          \
	SEC("kprobe" level "/ring_" #kind "_" #bytes)                       \
	int kind##_##bytes(struct egpu_ctx *c)                              \
	{                                                                   \
		__u64 record[bytes / 8] = {thread_id(c), bytes};            \
                                                                            \
		bpf_ringbuf_output(&ring, record, sizeof(record), 0);       \
		return 0;                                                   \
	}

OUTPUT("", thread, 16)
OUTPUT("", thread, 32)
OUTPUT("", thread, 64)
OUTPUT(".warp", warp, 16)
OUTPUT(".warp", warp, 32)
OUTPUT(".warp", warp, 64)

/* No grid is that large, but the verifier does not know it. */
SEC("kprobe/ring_alone_16")
int alone_16(struct egpu_ctx *c)
{
	__u64 record[2] = {thread_id(c), 16};

	bpf_ringbuf_output(&ring, record, sizeof(record) - (c->grid_x >> 30), 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
