// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Two kernels and the host on the same maps: what programs add is known whatever the order, and what
 * the host sets is what they add with. */
#include "egpu.bpf.h"

enum { FIRST, SECOND, FACTORS, PRESENT, ABSENT, REFUSED, TOTALS };
enum { ROOM = 4096 };

struct setting {
	__u32 factor;
	__s32 bias;
};

struct record {
	__u64 launch;
	__u32 block;
	__s16 kind;
	char text[6];
};

const volatile __u32 keys = 10;
const volatile __u8 records_on = 0;
__u64 step = 1;
__u64 steps;
__s32 marks[2] = { -1, 7 };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct setting);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TOTALS);
	__type(key, __u32);
	__type(value, __u64);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ROOM);
	__type(key, __u32);
	__type(value, __u64);
} blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
	__type(value, struct record);
} records SEC(".maps");

static __always_inline void add(__u32 what, __u64 amount)
{
	__u64 *value = bpf_map_lookup_elem(&totals, &what);

	if (value)
		*value += amount;
}

static __always_inline void enter(__u32 kernel)
{
	__u32 number = kernel;
	struct setting *setting = bpf_map_lookup_elem(&settings, &number);

	add(kernel, 1);
	if (setting)
		add(FACTORS, setting->factor);
	__sync_fetch_and_add(&steps, step);
}

SEC("kprobe/first")
int on_first(void *ctx)
{
	(void)ctx;
	enter(FIRST);
	return 0;
}

SEC("kprobe/second")
int on_second(void *ctx)
{
	(void)ctx;
	enter(SECOND);
	return 0;
}

SEC("kprobe.block/*")
int on_block(struct egpu_ctx *ctx)
{
	__u32 key = ctx->block_x % (keys ? keys : 1);
	__u64 zero = 0, *value;

	bpf_map_update_elem(&blocks, &key, &zero, BPF_NOEXIST);
	value = bpf_map_lookup_elem(&blocks, &key);
	if (value)
		__sync_fetch_and_add(value, 1);
	add(value ? PRESENT : ABSENT, 1);
	if (records_on) {
		struct record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

		if (!record)
			return 0;
		record->launch = ctx->launch_id;
		record->block = ctx->block_x;
		record->kind = -3;
		__builtin_memcpy(record->text, "block", 6);
		bpf_ringbuf_submit(record, 0);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
