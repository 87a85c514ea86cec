/* Ours: what bpftime's device code gets wrong. Each answer is a row of `answers`, from the thread
 * whose number the row has; two programs share each place. */
#include "examples.h"

struct three {
	__u32 a, b, c;
};

MAP(answers, 1503, 16);
MAP(small, 1503, 4);
MAP(threads, 1502, 1);
MAP(table, 1501, 2);
struct {
	__uint(type, 1504);
	__uint(max_entries, 5);
	__type(key, __u32);
	__type(value, struct three); /* 12 bytes, which Linux's arrays put 16 apart */
} odd SEC(".maps");

static __always_inline void answer(__u32 row, __u64 value)
{
	bpf_map_update_elem(&answers, &row, &value, BPF_ANY);
}

SEC("kprobe/" VADD)
int cuda__arrays(void)
{
	struct xyz thread;
	__u64 one = 1;
	__u32 last = 3, past = 4, huge = ~0u, zero = 0;

	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	if (thread.x != 0)
		return 0;
	answer(0, bpf_map_lookup_elem(&small, &last) != NULL);
	answer(1, bpf_map_lookup_elem(&small, &past) != NULL);
	answer(2, bpf_map_lookup_elem(&small, &huge) != NULL);
	answer(3, -bpf_map_update_elem(&small, &past, &one, BPF_ANY));
	answer(4, -bpf_map_update_elem(&small, &zero, &one, BPF_NOEXIST));
	answer(5, -bpf_map_update_elem(&small, &zero, &one, BPF_EXIST));
	answer(6, -bpf_map_delete_elem(&small, &zero));
	return 0;
}

SEC("kprobe/" VADD)
int cuda__hashes(void)
{
	struct xyz thread;
	__u64 one = 1;
	__u32 first = 7, second = 8, third = 9;

	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	if (thread.x != 1)
		return 0;
	answer(7, -bpf_map_update_elem(&table, &first, &one, BPF_NOEXIST));
	answer(8, -bpf_map_update_elem(&table, &first, &one, BPF_NOEXIST));
	answer(9, -bpf_map_update_elem(&table, &second, &one, BPF_EXIST));
	answer(10, -bpf_map_update_elem(&table, &second, &one, BPF_ANY));
	answer(11, -bpf_map_update_elem(&table, &third, &one, BPF_ANY));
	answer(12, -bpf_map_delete_elem(&table, &first));
	answer(13, -bpf_map_update_elem(&table, &third, &one, BPF_ANY));
	answer(14, -bpf_map_delete_elem(&table, &first));
	return 0;
}

SEC("kretprobe/" VADD)
int cuda__slots(void)
{
	struct xyz thread;
	__u32 zero = 0, key;
	__u64 *own = bpf_map_lookup_elem(&threads, &zero);

	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	if (own)
		*own = thread.x + 1;
	else if (thread.x == 9)
		answer(15, 99);
	key = thread.x;
	if (key < 5) {
		struct three value = {key, key + 1, key + 2};

		bpf_map_update_elem(&odd, &key, &value, BPF_ANY);
	}
	return 0;
}
