// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Things that probe authors write: the verifier takes all of them, as clang compiles them. */
#include "egpu.bpf.h"

struct slot {
	__u64 count;
	__u32 last;
	__u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[64]);
} histogram SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");

struct event {
	__u64 time;
	__u32 kind;
	__u8 name[12];
};

const volatile __u32 wanted = 3;
static const char kernel_name[12] = "vectorAdd";
__u64 seen;

/* Floor of the binary logarithm, by halving. */
static __always_inline __u32 log2_of(__u64 value)
{
	__u32 result = 0;

	for (int shift = 32; shift; shift >>= 1) {
		if (value >> shift) {
			value >>= shift;
			result += shift;
		}
	}
	return result;
}

SEC("kprobe/*")
int bucket(struct egpu_ctx *ctx)
{
	__u32 zero = 0;
	__u64 *row = bpf_map_lookup_elem(&histogram, &zero);

	if (!row)
		return 0;
	__u32 index = log2_of(ctx->globaltimer);
	if (index < 64)
		__sync_fetch_and_add(&row[index], 1);
	return 0;
}

SEC("kprobe/*")
int update_fields(struct egpu_ctx *ctx)
{
	__u32 key = ctx->warp & 63;
	struct slot *slot = bpf_map_lookup_elem(&slots, &key);

	if (!slot)
		return 0;
	slot->count += ctx->lane + 1;
	slot->flags |= 1 << (ctx->lane & 7);
	slot->last = ctx->launch_id;
	return 0;
}

SEC("kprobe/*")
int loop_over_data(struct egpu_ctx *ctx)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < wanted; i++)
		sum += ctx->thread_x * i + bpf_ktime_get_ns();
	__sync_fetch_and_add(&seen, sum);
	return 0;
}

static __noinline int fill(struct event *event, __u32 kind)
{
	event->kind = kind;
	for (int i = 0; i < 12; i++)
		event->name[i] = kernel_name[i];
	return kind > 4;
}

SEC("kretprobe/*")
int record_on_stack(struct egpu_ctx *ctx)
{
	struct event event = {};

	event.time = ctx->globaltimer - ctx->start_time;
	if (fill(&event, ctx->block_dim_x & 7))
		bpf_ringbuf_output(&events, &event, sizeof(event), 0);
	return 0;
}

SEC("kprobe/*")
int record_in_place(struct egpu_ctx *ctx)
{
	struct event *event;

	if (ctx->lane != 0 || ctx->thread_x > 31)
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 0;
	event->time = bpf_ktime_get_ns();
	switch (ctx->sm % 3) {
	case 0:
		event->kind = 7;
		break;
	case 1:
		event->kind = 1;
		break;
	default:
		bpf_ringbuf_discard(event, 0);
		return 0;
	}
	__builtin_memset(event->name, 0, sizeof(event->name));
	bpf_ringbuf_submit(event, 0);
	return 0;
}

SEC("kprobe/*")
int table_on_stack(struct egpu_ctx *ctx)
{
	volatile __u32 table[16];
	__u32 largest = 0;

	for (int i = 0; i < 16; i++)
		table[i] = ctx->param[i];
	table[ctx->lane & 15] = 9;
	for (int i = 0; i < 16; i++)
		if (table[i] > largest)
			largest = table[i];
	__sync_fetch_and_add(&seen, largest);
	return 0;
}

SEC("kprobe/*")
int whole_row(struct egpu_ctx *ctx)
{
	__u32 key = bpf_get_smp_processor_id() & 63;
	struct slot fresh = { .count = 1, .last = (__u32)ctx->kernel_id };

	bpf_map_update_elem(&slots, &key, &fresh, BPF_ANY);
	return 0;
}

SEC("kprobe/*")
int indices(struct egpu_ctx *ctx)
{
	__u64 x, y, z;

	bpf_get_thread_idx(&x, &y, &z);
	if (x == 0 && y == 0 && z == 0)
		__sync_fetch_and_add(&seen, 1);
	return 0;
}

SEC("kprobe/vectorAdd")
int BPF_KPROBE(guard, float *a, float *b, __u32 n)
{
	__u32 key = 0;
	__u64 *row = bpf_map_lookup_elem(&histogram, &key);

	if (row && a && b)
		__sync_fetch_and_add(&row[n & 63], 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
