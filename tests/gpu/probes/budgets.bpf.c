// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Loops that a budget ends: lanes that want more turns than there are next to lanes that do not. */
#include "egpu.bpf.h"

/* of pays: 0 runs, 1 runs cut short, 2 turns of those, 3 turns of the others, 4 turns these wanted;
 * of counts: 5 runs, 6 runs that came to the end, 7 turns of those, 8 turns these wanted;
 * of calls: 9 runs, 10 runs cut short, 11 calls of those, 12 calls of the others, 13 these wanted */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 14);
	__type(key, __u32);
	__type(value, __u64);
} results SEC(".maps");

__u64 base = 20;

static __always_inline void add(__u32 key, __u64 number)
{
	__u64 *value = bpf_map_lookup_elem(&results, &key);

	if (value)
		__sync_fetch_and_add(value, number);
}

static __always_inline __u64 wanted(const struct egpu_ctx *ctx)
{
	return base + 20 * (ctx->thread_x & 31);
}

SEC("kprobe/*")
int pays(struct egpu_ctx *ctx)
{
	__u64 n = wanted(ctx), i;

	for (i = 0; i < n && can_loop; i++)
		asm volatile("" : "+r"(i));
	add(0, 1);
	if (i < n) {
		add(1, 1);
		add(2, i);
	} else {
		add(3, i);
		add(4, n);
	}
	return 0;
}

SEC("kprobe/*")
int counts(struct egpu_ctx *ctx)
{
	__u64 n = wanted(ctx), i;

	add(5, 1);
	for (i = 0; i < n; i++)
		asm volatile("" : "+r"(i));
	add(6, 1);
	add(7, i);
	add(8, n);
	return 0;
}

static long step(__u32 turn, __u64 *sum)
{
	*sum += turn;
	return 0;
}

SEC("kprobe/*")
int calls(struct egpu_ctx *ctx)
{
	__u64 n = wanted(ctx), sum = 0;
	__u64 called = bpf_loop(n, step, &sum, 0);

	add(9, 1);
	if (called < n) {
		add(10, 1);
		add(11, called);
	} else {
		add(12, called);
		add(13, n);
	}
	return 0;
}
