// SPDX-License-Identifier: Apache-2.0 OR MIT
// Data sections, static and global sub-programs, in .text and in a section of their own.
#include "egpu.bpf.h"

const volatile __u32 scale = 3;
const volatile __u64 table[4] = {10, 20, 30, 40};
__u64 total;
__u32 calls = 5;
static volatile __u64 hidden[2];

static __noinline __u64 triple(__u64 x)
{
    hidden[1] += 1;
    return x * scale;
}

__noinline __u64 from_table(__u64 x)
{
    return table[x & 3] + triple(x);
}

SEC("executor/other")
__noinline __u64 other(__u64 x)
{
    calls += 1;
    return x ^ 0x55;
}

SEC("executor")
__u64 main_program(__u64 *memory)
{
    total += from_table(memory[0]);
    return other(total) + triple(2) + hidden[1];
}

SEC("executor")
int second(void *memory)
{
    return calls;
}

char LICENSE[] SEC("license") = "MIT";
