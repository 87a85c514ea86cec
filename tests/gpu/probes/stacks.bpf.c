// SPDX-License-Identifier: Apache-2.0 OR MIT
// From where are kernels launched? Blocks counted by the number of the launching stack.
#include "egpu.bpf.h"

#define NUMBERS (1 << 14)
#define EINVAL 22

struct {
    __uint(type, BPF_MAP_TYPE_STACK_TRACE);
    __uint(max_entries, 1024);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, 127 * sizeof(__u64));
} stacks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, NUMBERS);
    __type(key, __u32);
    __type(value, __u64);
} blocks SEC(".maps");

__u64 none, wrong;

SEC("kprobe.block/*")
int block(struct egpu_ctx *ctx)
{
    long number = bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK);
    __u32 key = number;
    __u64 *count = bpf_map_lookup_elem(&blocks, &key);
    if (number < 0 || !count)
        __sync_fetch_and_add(&none, 1);
    else
        __sync_fetch_and_add(count, 1);
    if (bpf_get_stackid(ctx, &stacks, 1 << 20) != -EINVAL)
        __sync_fetch_and_add(&wrong, 1);
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
