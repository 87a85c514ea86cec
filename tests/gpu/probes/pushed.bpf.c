// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Every thread pushes a pair to a queue and a stack (which is small and gives up its oldest), every
 * second takes one from each, and all push themselves to a Bloom filter and find themselves there. */
#include "egpu.bpf.h"

enum { ROOM = 5000, SMALL = 300 };
enum { THREADS, PUSHED, REFUSED, POPPED, EMPTY, TORN, FOUND, LOST, OTHER, KEPT, TAKEN, NONE, RESULTS };

struct pair {
	__u64 number, thrice;
};

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, ROOM);
	__type(value, struct pair);
} waiting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, SMALL);
	__type(value, struct pair);
} latest SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 1 << 20);
	__uint(map_extra, 3);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, RESULTS);
	__type(key, __u32);
	__type(value, __u64);
} results SEC(".maps");

static __always_inline void note(__u32 what)
{
	__u64 *value = bpf_map_lookup_elem(&results, &what);

	if (value)
		*value += 1;
}

SEC("kprobe/*")
int mix(struct egpu_ctx *c)
{
	__u64 id = ((__u64)c->block_y * c->grid_x + c->block_x) * c->block_dim_x * c->block_dim_y +
		   (__u64)c->thread_y * c->block_dim_x + c->thread_x;
	struct pair pair = {id, 3 * id};
	long answer;

	note(THREADS);
	answer = bpf_map_push_elem(&seen, &id, BPF_ANY);
	if (answer)
		note(OTHER);
	note(bpf_map_peek_elem(&seen, &id) == 0 ? FOUND : LOST);

	answer = bpf_map_push_elem(&waiting, &pair, BPF_ANY);
	note(answer == 0 ? PUSHED : answer == -7 ? REFUSED : OTHER);
	answer = bpf_map_push_elem(&latest, &pair, BPF_EXIST);
	note(answer == 0 ? KEPT : OTHER);
	if (id & 1)
		return 0;
	answer = bpf_map_pop_elem(&waiting, &pair);
	note(answer == 0 ? POPPED : answer == -2 ? EMPTY : OTHER);
	if (pair.thrice != 3 * pair.number)
		note(TORN);
	answer = bpf_map_pop_elem(&latest, &pair);
	note(answer == 0 ? TAKEN : answer == -2 ? NONE : OTHER);
	if (pair.thrice != 3 * pair.number)
		note(TORN);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
