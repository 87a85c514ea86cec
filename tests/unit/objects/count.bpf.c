// SPDX-License-Identifier: Apache-2.0 OR MIT
// Counts threads per SM at entry and sums a parameter at exit.
#include "egpu.bpf.h"

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} threads SEC(".maps");

SEC("kprobe/vectorAdd,_Z6reducePKfPfi")
int enter(struct egpu_ctx *ctx)
{
    __u32 key = egpu_thread_x(ctx) == 0 && egpu_lane(ctx) == 0;
    __u64 *count = bpf_map_lookup_elem(&threads, &key);
    if (count)
        *count += 1;
    return 0;
}

SEC("kretprobe.warp/vectorAdd")
int BPF_KPROBE(leave, const float *a, const float *b, float *c, unsigned int n)
{
    __u32 key = 0;
    __u64 *count = bpf_map_lookup_elem(&threads, &key);
    if (count && a)
        *count += n + PT_REGS_PARM5(ctx) + egpu_param(ctx, __u16, 24);
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
