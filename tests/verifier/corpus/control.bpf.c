// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Loops, strings, switches, spills, arithmetic, functions. */
#include "egpu.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u8[256]);
} text SEC(".maps");

struct list {
	__u32 count;
	__u32 items[32];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct list);
} lists SEC(".maps");

static const char needle[8] = "kernel";
const volatile __u32 turns = 8;
const volatile __s32 offsets[8] = { 0, 4, 8, 12, 2, 6, 10, 14 };
__u64 result;
__u64 sums[16];

#define PROBE(name) SEC("kprobe/*") int name(struct egpu_ctx *ctx)
#define RESULT(value) __sync_fetch_and_add(&result, (value))

static __always_inline __u8 *row(__u32 key) { return bpf_map_lookup_elem(&text, &key); }

PROBE(string_length)
{
	__u8 *s = row(0);
	__u32 n = 0;

	if (!s)
		return 0;
	for (n = 0; n < 256; n++)
		if (!s[n])
			break;
	RESULT(n);
	return 0;
}

PROBE(string_compare)
{
	__u8 *s = row(1);
	int same = 1;

	if (!s)
		return 0;
	for (int i = 0; i < 7; i++)
		if (s[i] != needle[i]) {
			same = 0;
			break;
		}
	RESULT(same);
	return 0;
}

PROBE(string_search)
{
	__u8 *s = row(2);

	if (!s)
		return 0;
	for (int i = 0; i < 64; i++) {
		int j = 0;

		while (j < 6 && s[i + j] == needle[j])
			j++;
		if (j == 6) {
			RESULT(i);
			break;
		}
	}
	return 0;
}

PROBE(hash_bytes)
{
	__u8 *s = row(3);
	__u32 h = 2166136261u;

	if (!s)
		return 0;
	for (int i = 0; i < 32; i++)
		h = (h ^ s[i]) * 16777619;
	RESULT(h);
	return 0;
}

PROBE(loop_by_config)
{
	__u64 n = 0;

	for (__u32 i = 0; i < turns; i++)
		n += ctx->lane ^ i;
	RESULT(n);
	return 0;
}

PROBE(loop_by_bounded_input)
{
	__u32 n = ctx->param[0];
	__u64 sum = 0;

	if (n > 32)
		n = 32;
	for (__u32 i = 0; i < n; i++)
		sum += bpf_get_prandom_u32();
	RESULT(sum);
	return 0;
}

PROBE(loop_over_list)
{
	__u32 zero = 0;
	struct list *l = bpf_map_lookup_elem(&lists, &zero);
	__u64 sum = 0;

	if (!l)
		return 0;
	for (__u32 i = 0; i < 32; i++) {
		if (i >= l->count)
			break;
		sum += l->items[i];
	}
	RESULT(sum);
	return 0;
}

PROBE(loop_downwards)
{
	__u64 sum = 0;

	for (int i = 20; i > 0; i -= 3)
		sum += ctx->clock >> i;
	RESULT(sum);
	return 0;
}

PROBE(nested_loops)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < 8; i++)
		for (__u32 j = 0; j < i; j++)
			sum += (ctx->block_x >> i) * (ctx->block_y >> j);
	RESULT(sum);
	return 0;
}

PROBE(do_while)
{
	__u64 v = ctx->globaltimer, n = 0;

	do {
		v >>= 4;
		n++;
	} while (v && n < 16);
	RESULT(n);
	return 0;
}

PROBE(sort_on_stack)
{
	__u32 v[8];

	for (int i = 0; i < 8; i++)
		v[i] = ctx->param[i];
	for (int i = 1; i < 8; i++)
		for (int j = i; j > 0 && v[j - 1] > v[j]; j--) {
			__u32 t = v[j];

			v[j] = v[j - 1];
			v[j - 1] = t;
		}
	RESULT(v[0]);
	return 0;
}

PROBE(table_of_offsets)
{
	__u8 *s = row(4);

	if (!s)
		return 0;
	RESULT(s[offsets[ctx->lane & 7] & 255]);
	return 0;
}

PROBE(switch_dense)
{
	__u64 v;

	switch (ctx->lane) {
	case 0: v = 3; break;
	case 1: v = 1; break;
	case 2: v = 4; break;
	case 3: v = 1; break;
	case 4: v = 5; break;
	case 5: v = 9; break;
	case 6: v = 2; break;
	case 7: v = 6; break;
	default: v = 0;
	}
	RESULT(v);
	return 0;
}

PROBE(signed_arithmetic)
{
	__s64 a = (__s64)ctx->param[0];
	__s32 b = (__s32)ctx->param[1];

	RESULT((a >> 3) + (__s64)b * 5 - (__s8)ctx->param[2]);
	if (b > -10 && b < 10)
		__sync_fetch_and_add(&sums[(b + 10) / 2], 1);
	return 0;
}

PROBE(narrow_types)
{
	__u8 a = ctx->param[0];
	__u16 b = ctx->param[1];
	__s16 c = ctx->param[2];

	__sync_fetch_and_add(&sums[a >> 4], b);
	RESULT((__u64)(a + b + c));
	return 0;
}

PROBE(byte_order)
{
	__u32 v = ctx->param[3];

	RESULT(__builtin_bswap32(v) + __builtin_bswap16((__u16)v) + __builtin_bswap64(v));
	return 0;
}

PROBE(spilled_pointers)
{
	__u8 *a = row(0), *b = row(1), *c = row(2), *d = row(3);
	__u64 t = bpf_ktime_get_ns(), p = bpf_get_prandom_u32();

	if (!a || !b || !c || !d)
		return 0;
	RESULT(a[1] + b[2] + c[3] + d[4] + t + p + bpf_ktime_get_ns());
	RESULT(a[5] + b[6] + c[7] + d[8]);
	return 0;
}

static __noinline __u64 mixed(__u64 a, __u64 b) { return a * 31 + (b ^ a >> 7); }

PROBE(static_function) { RESULT(mixed(ctx->launch_id, mixed(ctx->clock, 3))); return 0; }

static __noinline int smallest(const __u32 *v, int n)
{
	__u32 least = ~0u;

	for (int i = 0; i < 4 && i < n; i++)
		if (v[i] < least)
			least = v[i];
	return least;
}

PROBE(pointer_to_a_function)
{
	__u32 v[4] = { ctx->lane, ctx->sm, ctx->warp, 7 };

	RESULT(smallest(v, 4));
	return 0;
}

__attribute__((noinline)) int global_function(__u64 v)
{
	return v > 100 ? v / 3 : 1;
}

PROBE(calls_a_global_function) { RESULT(global_function(ctx->param[0])); return 0; }

static __noinline __u64 third(__u64 v) { return v + 3; }
static __noinline __u64 second(__u64 v) { return third(v) * 2; }
static __noinline __u64 first(__u64 v) { return second(v) + second(v + 1); }

PROBE(chain_of_functions) { RESULT(first(ctx->lane)); return 0; }

PROBE(checked_by_sum)
{
	__u8 *s = row(5);
	__u64 at = ctx->param[0], size = ctx->param[1];

	if (!s || at > 200 || size > 50)
		return 0;
	RESULT(s[at + size]);
	return 0;
}

PROBE(checked_by_subtraction)
{
	__u8 *s = row(6);
	__u32 at = ctx->param[0];

	if (!s || at < 10 || at >= 266)
		return 0;
	RESULT(s[at - 10]);
	return 0;
}

PROBE(selected_pointer)
{
	__u8 *a = row(7), *b = row(8), *s;

	if (!a || !b)
		return 0;
	s = ctx->lane & 1 ? a : b;
	RESULT(s[ctx->lane]);
	return 0;
}

PROBE(early_exits)
{
	if (ctx->grid_x < 2)
		return 0;
	if (ctx->block_x != 0 || ctx->thread_x > 31)
		return 1;
	if (ctx->param_size < 16)
		return 2;
	RESULT(ctx->param[1]);
	return 0;
}

PROBE(bit_scan)
{
	__u64 mask = ctx->active_mask;
	int n = 0;

	for (int i = 0; i < 32; i++)
		n += mask >> i & 1;
	RESULT(n);
	return 0;
}
char LICENSE[] SEC("license") = "Dual MIT/GPL";
