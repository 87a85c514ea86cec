// SPDX-License-Identifier: Apache-2.0 OR MIT
// A ring buffer, and value types of every kind that BTF describes.
#include "egpu.bpf.h"

enum phase { ENTERED = 1, LEFT = 2 };
enum big { HUGE = 0x100000000ULL };

struct point {
    __s32 x;
    __u32 y;
};

struct record {
    char name[8];
    struct point at[2];
    enum phase phase;
    __u32 low : 3;
    __s32 high : 5;
    union {
        __u64 whole;
        struct {
            __u32 first, second;
        };
    };
    __u8 bytes[2];
    _Bool flag;
    enum big big;
    void *pointer;
    __u16 class;
    __u16 _pad;
};

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} events SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, 16);
    __uint(max_entries, 3);
    __uint(map_flags, 0);
} plain SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct record);
} last SEC(".maps");

SEC("kprobe.block/ns::*")
int record(void *ctx)
{
    struct record *slot = bpf_ringbuf_reserve(&events, sizeof(*slot), 0);
    __u32 zero = 0;
    void *kept;

    if (!slot)
        return 0;
    __builtin_memset(slot, 0, sizeof(*slot));
    slot->name[0] = 'k';
    slot->at[1].x = -7;
    slot->phase = LEFT;
    slot->low = 5;
    slot->high = -3;
    slot->first = 1;
    slot->second = egpu_sm(ctx);
    slot->bytes[1] = 9;
    slot->flag = 1;
    slot->big = HUGE;
    slot->class = 2;
    bpf_map_update_elem(&last, &zero, slot, BPF_ANY);
    bpf_ringbuf_submit(slot, 0);
    kept = bpf_map_lookup_elem(&plain, &zero);
    return kept != NULL;
}

char LICENSE[] SEC("license") = "GPL";
