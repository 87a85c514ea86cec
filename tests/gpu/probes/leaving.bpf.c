// SPDX-License-Identifier: Apache-2.0 OR MIT
/* What each thread that leaves does for itself: it counts by its number in a hash map that all share,
 * and in a loop that is longer for some lanes. One in 61 sends a record when it comes and when it
 * leaves. */
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} threads SEC(".maps");

struct note {
	__u32 leaves, block, thread, sum; /* of the others */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
	__type(value, struct note);
} notes SEC(".maps");

enum { LEFT, TURNS, CAME, SENT, TOTALS };

#include "totals.h"

static __always_inline void send(struct egpu_ctx *ctx, __u32 leaves)
{
	__u32 block = ctx->block_x, thread = ctx->thread_x;
	struct note note = {leaves, block, thread, leaves + block + thread};

	if (thread % 61)
		return;
	bpf_ringbuf_output(&notes, &note, sizeof(note), 0);
	add(SENT, 1);
}

SEC("kprobe/*")
int enter(struct egpu_ctx *ctx)
{
	send(ctx, 0);
	add(CAME, 1);
	return 0;
}

SEC("kretprobe/*")
int leave(struct egpu_ctx *ctx)
{
	__u32 key = ctx->thread_x, turns = 0;
	__u64 *count, first = 0;

	count = bpf_map_lookup_elem(&threads, &key);
	if (!count) {
		bpf_map_update_elem(&threads, &key, &first, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&threads, &key);
	}
	if (count)
		__atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
	for (__u32 turn = 0; turn < 8; turn++)
		if (ctx->lane >> (turn % 5) & 1)
			turns++;
	send(ctx, 1);
	add(LEFT, 1);
	add(TURNS, turns);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
