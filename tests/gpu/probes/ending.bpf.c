// SPDX-License-Identifier: Apache-2.0 OR MIT
// Ends every third thread of a kernel before it does anything.
#include "egpu.bpf.h"

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} threads SEC(".maps");

SEC("kprobe/vecadd")
int ending(struct egpu_ctx *ctx)
{
    __u64 number = (__u64)ctx->block_x * ctx->block_dim_x + ctx->thread_x;
    __u32 key = number % 3 == 0;
    __u64 *count = bpf_map_lookup_elem(&threads, &key);
    if (count)
        *count += 1;
    if (key)
        bpf_cuda_exit();
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
