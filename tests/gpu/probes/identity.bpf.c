// SPDX-License-Identifier: Apache-2.0 OR MIT
// Who runs and when, from one thread of each block: what the host knows as well.
#include "egpu.bpf.h"

struct seen {
    __u64 device, ktime, boot, coarse, pid_tgid, uid_gid, cookie, kernel, kernel_id, first, same;
    char comm[16];
};

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 22);
    __type(value, struct seen);
} events SEC(".maps");

SEC("kprobe.block/*")
int block(struct egpu_ctx *ctx)
{
    struct seen *seen = bpf_ringbuf_reserve(&events, sizeof(*seen), 0);
    __u64 first = 0;
    if (!seen)
        return 0;
    seen->device = bpf_get_globaltimer();
    seen->ktime = bpf_ktime_get_ns();
    seen->boot = bpf_ktime_get_boot_ns();
    seen->coarse = bpf_ktime_get_coarse_ns();
    seen->pid_tgid = bpf_get_current_pid_tgid();
    seen->uid_gid = bpf_get_current_uid_gid();
    seen->cookie = bpf_get_attach_cookie(ctx);
    seen->kernel = bpf_get_func_ip(ctx);
    seen->kernel_id = ctx->kernel_id;
    bpf_get_func_arg(ctx, 0, &first);
    seen->first = first;
    seen->same = first == PT_REGS_PARM1(ctx);
    bpf_get_current_comm(seen->comm, sizeof(seen->comm));
    bpf_ringbuf_submit(seen, 0);
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
