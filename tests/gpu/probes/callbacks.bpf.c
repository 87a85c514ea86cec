// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Callbacks of bpf_loop and bpf_for_each_map_elem: every thread adds what is known beforehand, in loops that
 * lanes leave apart too. */
#include "egpu.bpf.h"

#define ENTRIES 5
#define TURNS 9

/* 0: threads, 1: sums of turns, 2: sums of keys, 3: results that are wrong */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} results SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ENTRIES);
	__type(key, __u32);
	__type(value, __u64);
} per_sm SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENTRIES);
	__type(key, __u32);
	__type(value, __u64);
} shared SEC(".maps");

static __always_inline void add(__u32 key, __u64 number)
{
	__u64 *value = bpf_map_lookup_elem(&results, &key);

	if (value)
		*value += number;
}

static long add_turn(__u32 turn, __u64 *sum)
{
	*sum += turn;
	return 0;
}

struct end {
	__u64 last;
	__u64 sum;
};

static long until(__u32 turn, struct end *end)
{
	end->sum += turn;
	return turn >= end->last;
}

static long add_per_sm(void *map __attribute__((unused)), __u32 *key, __u64 *value, void *ctx __attribute__((unused)))
{
	*value += *key + 1;
	return 0;
}

static long add_key(void *map __attribute__((unused)), __u32 *key, __u64 *value, __u64 *sum)
{
	*sum += *key;
	return *value != 0; /* nobody writes to it */
}

static long walk(__u32 turn __attribute__((unused)), __u64 *sum)
{
	bpf_for_each_map_elem(&shared, add_key, sum, 0);
	return 0;
}

SEC("kprobe/*")
int calls_back(struct egpu_ctx *ctx)
{
	__u64 turns = 0, keys = 0, last = ctx->thread_x % TURNS, wrong = 0;
	struct end end = {.last = last};

	wrong += bpf_loop(TURNS, add_turn, &turns, 0) != TURNS;
	wrong += bpf_loop(TURNS, until, &end, 0) != (long)last + 1;
	wrong += end.sum != last * (last + 1) / 2;
	wrong += bpf_for_each_map_elem(&per_sm, add_per_sm, 0, 0) != ENTRIES;
	wrong += bpf_loop(2, walk, &keys, 0) != 2;
	add(0, 1);
	add(1, turns);
	add(2, keys);
	if (wrong)
		add(3, wrong);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
