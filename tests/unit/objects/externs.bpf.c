// SPDX-License-Identifier: Apache-2.0 OR MIT
// Symbols that only a Linux kernel defines, which are refused by name.
#include "egpu.bpf.h"

extern int CONFIG_HZ __attribute__((section(".kconfig")));

SEC("kprobe/vectorAdd")
int externs(void *ctx)
{
    return CONFIG_HZ;
}

char LICENSE[] SEC("license") = "GPL";
