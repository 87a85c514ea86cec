// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A hash map of a million entries: larger than the caches of the device. */
#include "keys.h"

HASH(add_million, 1 << 20);

SEC("kprobe/hash_add_million")
int hash_add_million(struct egpu_ctx *c)
{
	ADD(add_million, mixed(thread_id(c)) >> 12);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
