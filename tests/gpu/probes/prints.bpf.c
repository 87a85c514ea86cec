// SPDX-License-Identifier: Apache-2.0 OR MIT
// Lines from blocks and from some threads; every value of a line follows from its place.
#include "egpu.bpf.h"

#define EVERY 61

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} tried SEC(".maps");

const char table[4][8] = {"zero", "one", "two", "three"};

static void count(__u32 key)
{
    __u64 *value = bpf_map_lookup_elem(&tried, &key);
    if (value)
        *value += 1;
}

SEC("kprobe.block/*")
int block(struct egpu_ctx *ctx)
{
    count(0);
    bpf_printk("block %u %s %d", ctx->block_x, "begins", -1);
    return 0;
}

SEC("kretprobe/*")
int some(struct egpu_ctx *ctx)
{
    __u64 number = (__u64)ctx->block_x * ctx->block_dim_x + ctx->thread_x;
    char name[8] = "stack";
    if (number % EVERY)
        return 0;
    count(1);
    bpf_printk("some %u %llu %x %s %s %lld\n", ctx->thread_x, number, 0xdeadbeef, name,
               table[ctx->thread_x & 3], -number);
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
