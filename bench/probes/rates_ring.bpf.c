// SPDX-License-Identifier: Apache-2.0 OR MIT
/* One ring record of 16, 32 or 64 bytes for each thread or warp of the kernels of bench/rings.cu. */
#include "keys.h"

#ifndef RING_BYTES
#define RING_BYTES (256 << 20)
#endif

#define RING(name, bytes)                           \
	struct {                                    \
		__uint(type, BPF_MAP_TYPE_RINGBUF); \
		__uint(max_entries, bytes);         \
	} name SEC(".maps")

/* A launch fits, also where one SM gets more than its share.  Records of warps have maps of their
 * own, each with records of one size: in device memory they get slots. */
RING(ring, RING_BYTES);
RING(ring_16, 128 << 20);
RING(ring_32, 128 << 20);
RING(ring_64, 256 << 20);

#define OUTPUT(level, kind, bytes, ring)                                    \
	SEC("kprobe" level "/ring_" #kind "_" #bytes)                       \
	int kind##_##bytes(struct egpu_ctx *c)                              \
	{                                                                   \
		__u64 record[bytes / 8] = {thread_id(c), bytes};            \
                                                                            \
		bpf_ringbuf_output(&ring, record, sizeof(record), 0);       \
		return 0;                                                   \
	}

OUTPUT("", thread, 16, ring)
OUTPUT("", thread, 32, ring)
OUTPUT("", thread, 64, ring)
OUTPUT(".warp", warp, 16, ring_16)
OUTPUT(".warp", warp, 32, ring_32)
OUTPUT(".warp", warp, 64, ring_64)

/* No grid is that large, but the verifier does not know it. */
SEC("kprobe/ring_alone_16")
int alone_16(struct egpu_ctx *c)
{
	__u64 record[2] = {thread_id(c), 16};

	bpf_ringbuf_output(&ring, record, sizeof(record) - (c->grid_x >> 30), 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
