/* What the example programs have in common.  They keep to bpftime's conventions: formats and
 * temporaries on the stack, no global data, programs named cuda__*. */
#pragma once

#include "egpu.bpf.h"

#define VADD "_Z9vectorAddPKfS0_Pf"
#define VADD_N "_Z9vectorAddPKfS0_Pfi"

/* Calls by number, as bpftime's own examples declare them. */
static long (*print)(const char *format, __u32 size, ...) = (void *)6;
static long (*output)(void *ctx, void *map, __u64 flags, void *data, __u64 size) = (void *)25;
static long (*put_string)(const char *text) = (void *)501;

struct xyz {
	__u64 x, y, z;
};

/* A map of one u64 for each of a few u32 keys. */
#define MAP(name, kind, entries)                                                                   \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(max_entries, entries);                                                      \
		__type(key, __u32);                                                                \
		__type(value, __u64);                                                              \
	} name SEC(".maps")

/* Adds to a hash entry that many threads may make at once: exactly one makes it, all add. */
static __always_inline void add(void *map, __u32 key, __u64 amount)
{
	__u64 zero = 0;
	__u64 *value;

	bpf_map_update_elem(map, &key, &zero, BPF_NOEXIST);
	value = bpf_map_lookup_elem(map, &key);
	if (value)
		__sync_fetch_and_add(value, amount);
}

static __always_inline __u32 pid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

/* Whether this is the first thread of the launch. */
static __always_inline int is_leader(void)
{
	struct xyz block, thread;

	bpf_get_block_idx(&block.x, &block.y, &block.z);
	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	return (block.x | block.y | block.z | thread.x | thread.y | thread.z) == 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
