/* Ours: lanes of one warp that end while others go on, by a sub-program, and who is left. */
#include "examples.h"

static long (*end_thread)(void) = (void *)507;

MAP(seen, 1503, 3); /* came, went on after the call, left by themselves */

static __always_inline void count(__u32 key)
{
	__u64 *value = bpf_map_lookup_elem(&seen, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __noinline int end_if(__u64 odd)
{
	if (odd)
		end_thread();
	return 0;
}

SEC("kprobe/" VADD)
int cuda__end(void)
{
	struct xyz thread;

	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	count(0);
	end_if(thread.x & 1);
	count(1);
	return 0;
}

SEC("kretprobe/" VADD)
int cuda__left(void)
{
	count(2);
	return 0;
}
