// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Hash maps of an object that deletes entries somewhere: updates guard against that. */
#include "keys.h"

HASH(add_uniform, 65536);
HASH(put_uniform, 65536);
HASH(put_zipf, 65536);

SEC("kprobe/pinned_add_uniform")
int pinned_add_uniform(struct egpu_ctx *c)
{
	ADD(add_uniform, uniform(c));
	return 0;
}

SEC("kprobe/pinned_put_uniform")
int pinned_put_uniform(struct egpu_ctx *c)
{
	PUT(put_uniform, uniform(c));
	return 0;
}

SEC("kprobe/pinned_put_zipf")
int pinned_put_zipf(struct egpu_ctx *c)
{
	PUT(put_zipf, zipf(c));
	return 0;
}

SEC("kprobe/no_such_kernel")
int forget(struct egpu_ctx *c)
{
	__u32 key = uniform(c);

	bpf_map_delete_elem(&add_uniform, &key);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
