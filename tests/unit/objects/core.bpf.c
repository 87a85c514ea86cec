// SPDX-License-Identifier: Apache-2.0 OR MIT
// A CO-RE relocation, which is refused by name.
#include "egpu.bpf.h"

struct task {
    int pid;
} __attribute__((preserve_access_index));

SEC("kprobe/vectorAdd")
int core(struct task *task)
{
    return task->pid;
}

char LICENSE[] SEC("license") = "GPL";
