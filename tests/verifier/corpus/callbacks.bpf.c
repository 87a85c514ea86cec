// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Probes with callbacks: bpf_loop and bpf_for_each_map_elem. */
#include "egpu.bpf.h"

struct total {
	__u64 sum;
	__u64 calls;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, struct total);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32);
	__type(key, __u64);
	__type(value, struct total);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

static long count_one(void *map, __u32 *key, struct total *value, void *ctx)
{
	__sync_fetch_and_add(&value->calls, 1);
	return 0;
}

SEC("kprobe/*")
int counts_each(struct egpu_ctx *ctx)
{
	bpf_for_each_map_elem(&totals, count_one, 0, 0);
	return 0;
}

static long add_up(void *map, __u32 *key, struct total *value, struct total *result)
{
	result->sum += value->sum;
	result->calls += 1;
	return 0;
}

SEC("kprobe/*")
int sums_up(struct egpu_ctx *ctx)
{
	struct total result = {};
	struct total *record;

	bpf_for_each_map_elem(&totals, add_up, &result, 0);
	record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record)
		return 0;
	*record = result;
	bpf_ringbuf_submit(record, 0);
	return 0;
}

static long bump(void *map, __u32 *key, __u64 *value, void *ctx)
{
	*value += *key + 1;
	return 0;
}

SEC("kprobe/*")
int bumps_this_sm(struct egpu_ctx *ctx)
{
	bpf_for_each_map_elem(&hits, bump, 0, 0);
	return 0;
}

struct wanted {
	__u64 parameter;
	__u32 found;
	__u32 rest;
};

static long find(void *map, __u64 *key, struct total *value, struct wanted *wanted)
{
	if (*key != wanted->parameter)
		return 0;
	wanted->found = 1;
	__sync_fetch_and_add(&value->calls, 1);
	return 1;
}

SEC("kprobe/*")
int finds_in_a_table(struct egpu_ctx *ctx)
{
	struct wanted wanted = {.parameter = ctx->block_x};
	struct total first = {};

	bpf_for_each_map_elem(&seen, find, &wanted, 0);
	if (!wanted.found)
		bpf_map_update_elem(&seen, &wanted.parameter, &first, BPF_NOEXIST);
	return 0;
}

static long old(void *map, __u64 *key, struct total *value, __u64 *removed)
{
	if (value->calls > 100) {
		__u64 copy = *key;

		bpf_map_delete_elem(map, &copy);
		*removed += 1;
	}
	return 0;
}

SEC("kprobe.warp/*")
int removes_what_is_old(struct egpu_ctx *ctx)
{
	__u64 removed = 0;
	__u32 key = 0;
	struct total *value;

	bpf_for_each_map_elem(&seen, old, &removed, 0);
	value = bpf_map_lookup_elem(&totals, &key);
	if (value)
		__sync_fetch_and_add(&value->calls, removed);
	return 0;
}

struct search {
	__u64 left;
	__u32 bit;
};

static long highest_bit(__u32 turn, struct search *search)
{
	if (!search->left)
		return 1;
	search->left >>= 1;
	search->bit = turn;
	return 0;
}

SEC("kprobe/*")
int loops_over_bits(struct egpu_ctx *ctx)
{
	struct search search = {.left = ctx->thread_x + 1};
	__u64 *value;
	__u32 key;

	bpf_loop(64, highest_bit, &search, 0);
	key = search.bit & 7;
	value = bpf_map_lookup_elem(&hits, &key);
	if (value)
		*value += 1;
	return 0;
}

static long nothing(__u32 turn, void *ctx)
{
	__u32 key = turn & 15;
	struct total *value = bpf_map_lookup_elem(&totals, &key);

	if (value)
		__sync_fetch_and_add(&value->sum, turn);
	return 0;
}

SEC("kprobe/*")
int loops_as_often_as_asked(struct pt_regs *ctx)
{
	__u64 turns = PT_REGS_PARM4(ctx);

	if (turns > 100)
		turns = 100;
	bpf_loop(turns, nothing, 0, 0);
	return 0;
}

static long inner(void *map, __u32 *key, __u64 *value, __u64 *sum)
{
	*sum += *key;
	return 0;
}

static long outer(__u32 turn, __u64 *sum)
{
	bpf_for_each_map_elem(&hits, inner, sum, 0);
	return turn > 15;
}

SEC("kretprobe/*")
int loops_over_walks(struct egpu_ctx *ctx)
{
	__u64 sum = 0;
	__u32 key = 3;
	struct total *value;

	bpf_loop(20, outer, &sum, 0);
	value = bpf_map_lookup_elem(&totals, &key);
	if (value)
		__sync_fetch_and_add(&value->sum, sum);
	return 0;
}
