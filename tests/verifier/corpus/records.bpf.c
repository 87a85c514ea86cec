// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Records into ring buffers: reserve, output, nested structures, padding, names. */
#include "egpu.bpf.h"

struct point {
	__u32 x, y, z;
};

struct event {
	__u64 time;
	struct point block, thread;
	__u32 kind;
	__u8 name[16];
	struct {
		__u16 low, high;
	} parts[3];
};

struct small {
	__u64 time;
	__u32 lane;
	__u32 sm;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct event);
} scratch SEC(".maps");

static const char label[16] = "matrixMultiply";
__u64 dropped;

#define PROBE(name) SEC("kprobe/*") int name(struct egpu_ctx *ctx)

static __always_inline int lost(void)
{
	__sync_fetch_and_add(&dropped, 1);
	return 0;
}

PROBE(reserve_and_submit)
{
	struct small *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return lost();
	e->time = bpf_ktime_get_ns();
	e->lane = ctx->lane;
	e->sm = ctx->sm;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

PROBE(reserve_and_discard)
{
	struct small *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return 0;
	e->time = ctx->clock;
	if (e->time & 1)
		bpf_ringbuf_discard(e, 0);
	else
		bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

PROBE(output_from_stack)
{
	struct small e = { .time = ctx->globaltimer, .lane = ctx->lane, .sm = ctx->sm };

	bpf_ringbuf_output(&events, &e, sizeof(e), 0);
	return 0;
}

PROBE(output_large)
{
	struct event e;

	__builtin_memset(&e, 0, sizeof(e));
	e.time = ctx->launch_id;
	e.block.x = ctx->block_x;
	e.block.y = ctx->block_y;
	e.thread.x = ctx->thread_x;
	__builtin_memcpy(e.name, label, sizeof(e.name));
	e.parts[1].high = 7;
	if (bpf_ringbuf_output(&events, &e, sizeof(e), 0))
		return lost();
	return 0;
}

PROBE(output_from_map)
{
	__u32 key = ctx->sm & 255;
	struct event *e = bpf_map_lookup_elem(&scratch, &key);

	if (!e)
		return 0;
	bpf_ringbuf_output(&events, e, sizeof(*e), 0);
	return 0;
}

PROBE(output_of_some_size)
{
	__u8 bytes[64] = {};
	__u64 size = ctx->param[0] & 63;

	if (!size)
		return 0;
	bytes[3] = ctx->lane;
	bpf_ringbuf_output(&events, bytes, size, 0);
	return 0;
}

PROBE(fill_by_index)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return 0;
	__builtin_memset(e, 0, sizeof(*e));
	for (int i = 0; i < 16; i++)
		e->name[i] = label[i];
	for (int i = 0; i < 3; i++) {
		e->parts[i].low = i;
		e->parts[i].high = ctx->param[i];
	}
	bpf_ringbuf_submit(e, 0);
	return 0;
}

PROBE(kind_by_switch)
{
	struct small *e;
	__u32 lane;

	switch (ctx->kernel_id) {
	case 1: lane = 10; break;
	case 2: lane = 20; break;
	case 3: lane = 31; break;
	case 7: return 0;
	case 9: lane = ctx->lane; break;
	default: lane = 99;
	}
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		return 0;
	e->time = 0;
	e->lane = lane;
	e->sm = 0;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

PROBE(two_records)
{
	struct small *a = bpf_ringbuf_reserve(&events, sizeof(*a), 0);
	struct small *b = bpf_ringbuf_reserve(&events, sizeof(*b), 0);

	if (a) {
		a->time = a->lane = a->sm = 1;
		bpf_ringbuf_submit(a, 0);
	}
	if (b) {
		b->time = b->lane = b->sm = 2;
		bpf_ringbuf_submit(b, 0);
	}
	return 0;
}

static __noinline void describe(struct small *e, __u32 lane)
{
	e->lane = lane;
	e->sm = lane / 2;
}

PROBE(filled_by_a_function)
{
	struct small *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return 0;
	e->time = 5;
	describe(e, ctx->lane);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

PROBE(on_condition)
{
	struct small *e = NULL;

	if (ctx->lane == 0)
		e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		return 0;
	e->time = e->lane = e->sm = 0;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

PROBE(query_first)
{
	if (bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > 4096)
		return lost();
	return 0;
}

PROBE(indices_by_helper)
{
	__u64 v[6] = {};

	bpf_get_block_idx(&v[0], &v[1], &v[2]);
	bpf_get_thread_idx(&v[3], &v[4], &v[5]);
	bpf_ringbuf_output(&events, v, sizeof(v), 0);
	return 0;
}

SEC("kprobe/vectorAdd")
int BPF_KPROBE(parameters, float *a, float *b, __u64 n)
{
	__u64 e[3] = { (__u64)a, (__u64)b, n };

	if (a && n > 16)
		bpf_ringbuf_output(&events, e, sizeof(e), 0);
	return 0;
}

SEC("kretprobe/*")
int duration(struct egpu_ctx *ctx)
{
	__u64 took = ctx->globaltimer - ctx->start_time;

	if ((__s64)took < 0)
		return 0;
	bpf_ringbuf_output(&events, &took, sizeof(took), 0);
	return 0;
}
char LICENSE[] SEC("license") = "Dual MIT/GPL";
