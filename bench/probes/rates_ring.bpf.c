// SPDX-License-Identifier: Apache-2.0 OR MIT
/* One ring record of 16, 32 or 64 bytes for each thread or warp of the kernels of bench/rings.cu. */
#include "keys.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 128 << 20);
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

char LICENSE[] SEC("license") = "Dual MIT/GPL";
