/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the tools' programs need where groups of lanes meet. */
#pragma once
#include "egpu.bpf.h"

/* Keeps the compiler from knowing more of a value: of what a compare-and-swap gave it would make a
 * flag, by a branch, and branch again on that. */
#define OPAQUE(value) asm volatile("" : "+r"(value))

static __always_inline __u64 swap(__u64 *at, __u64 old, __u64 new)
{
	__u64 was = __sync_val_compare_and_swap(at, old, new);

	OPAQUE(was);
	return was;
}

/* How many bits are set. */
static __always_inline __u32 lanes(__u32 mask)
{
	mask -= (mask >> 1) & 0x55555555;
	mask = (mask & 0x33333333) + ((mask >> 2) & 0x33333333);
	mask = (mask + (mask >> 4)) & 0x0f0f0f0f;
	return (mask * 0x01010101) >> 24;
}
