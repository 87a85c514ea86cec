/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The keys of the map benchmarks, of which bench/maps.cu has the same. */
#pragma once
#include "egpu.bpf.h"

static __always_inline __u32 mixed(__u32 id)
{
	id *= 2654435761u;
	id ^= id >> 15;
	return id * 2246822519u;
}

static __always_inline __u32 thread_id(struct egpu_ctx *c)
{
	return c->block_x * c->block_dim_x + c->thread_x;
}

/* 65,536 keys, all alike. */
static __always_inline __u32 uniform(struct egpu_ctx *c)
{
	return mixed(thread_id(c)) >> 16;
}

/* Keys 1 to 65,535, each about as often as one divided by it (Zipf, s = 1): one of 16 octaves, then
 * one of its keys.  Key 1 is a sixteenth of all. */
static __always_inline __u32 zipf(struct egpu_ctx *c)
{
	__u32 h = mixed(thread_id(c)), e = h >> 28;

	return 1u << e | (h >> 8 & ((1u << e) - 1));
}

#define HASH(name, entries)                  \
	struct {                             \
		__uint(type, BPF_MAP_TYPE_HASH); \
		__uint(max_entries, entries);    \
		__type(key, __u32);              \
		__type(value, __u64);            \
	} name SEC(".maps")

/* Count under a key, which is inserted when it is not there. */
#define ADD(map, which)                                                     \
	do {                                                                \
		__u32 key = (which);                                        \
		__u64 zero = 0, *value = bpf_map_lookup_elem(&(map), &key); \
		if (!value) {                                               \
			bpf_map_update_elem(&(map), &key, &zero, BPF_NOEXIST); \
			value = bpf_map_lookup_elem(&(map), &key);          \
		}                                                           \
		if (value)                                                  \
			__sync_fetch_and_add(value, 1);                     \
	} while (0)

#define PUT(map, which)                                                    \
	do {                                                               \
		__u32 key = (which);                                       \
		__u64 id = thread_id(c);                                   \
		bpf_map_update_elem(&(map), &key, &id, BPF_ANY);           \
	} while (0)
