// SPDX-License-Identifier: Apache-2.0 OR MIT
// Reads the input of the demo's vecadd(const float *a, const float *b, float *sum, int n), and where
// nothing may be read: beyond the end, across it, at address 8.
#include "egpu.bpf.h"

#define EFAULT 14

enum {
    READ, FAULTS, SUM_A, SUM_B, WILD, ACROSS, CLEARED, TEXTS, TEXT_FAULTS, COUNT
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNT);
    __type(key, __u32);
    __type(value, __u64);
} seen SEC(".maps");

static __always_inline void add(__u32 key, __u64 value)
{
    __u64 *total = bpf_map_lookup_elem(&seen, &key);
    if (total)
        __sync_fetch_and_add(total, value);
}

SEC("kprobe/vecadd")
int reads(struct egpu_ctx *ctx)
{
    __u64 a = PT_REGS_PARM1(ctx), b = PT_REGS_PARM2(ctx);
    __u32 n = PT_REGS_PARM4(ctx);
    __u64 i = (__u64)ctx->block_x * ctx->block_dim_x + ctx->thread_x;
    __u32 value = 1;
    __u64 pair = 1;
    char text[8];
    long length;
    if (bpf_probe_read(&value, sizeof(value), (void *)(a + 4 * (__u64)n)) == -EFAULT) {
        add(FAULTS, 1);
        if (!value)
            add(CLEARED, 1);
    }
    if (i < n && !bpf_probe_read(&value, sizeof(value), (void *)(a + 4 * i))) {
        add(READ, 1);
        add(SUM_A, value);
    }
    if (i < n && !bpf_probe_read_kernel(&value, sizeof(value), (void *)(b + 4 * i)))
        add(SUM_B, value);
    if (bpf_probe_read_user(&pair, sizeof(pair), (void *)8) == -EFAULT)
        add(WILD, 1);
    if (bpf_probe_read(&pair, sizeof(pair), (void *)(a + 4 * (__u64)n - 4)) == -EFAULT)
        add(ACROSS, 1);
    if (i >= n)
        return 0;
    length = bpf_probe_read_kernel_str(text, 5, (void *)(a + 4 * i + 2));
    if (length == -EFAULT)
        add(TEXT_FAULTS, 1);
    else
        add(TEXTS, length);
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
