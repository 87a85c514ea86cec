// SPDX-License-Identifier: Apache-2.0 OR MIT
/* One hash map operation for each thread of the kernels of bench/maps.cu; nothing is deleted. */
#include "keys.h"

HASH(add_uniform, 65536);
HASH(add_zipf, 65536);
HASH(put_uniform, 65536);
HASH(put_zipf, 65536);

SEC("kprobe/hash_add_uniform")
int hash_add_uniform(struct egpu_ctx *c)
{
	ADD(add_uniform, uniform(c));
	return 0;
}

SEC("kprobe/hash_add_zipf")
int hash_add_zipf(struct egpu_ctx *c)
{
	ADD(add_zipf, zipf(c));
	return 0;
}

SEC("kprobe/hash_put_uniform")
int hash_put_uniform(struct egpu_ctx *c)
{
	PUT(put_uniform, uniform(c));
	return 0;
}

SEC("kprobe/hash_put_zipf")
int hash_put_zipf(struct egpu_ctx *c)
{
	PUT(put_zipf, zipf(c));
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
