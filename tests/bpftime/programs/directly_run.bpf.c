/* 15, the shape of directly_run_on_gpu: programs that are kernels themselves. */
#include "examples.h"

#define TABLE(name, entries, kind)                                                                 \
	struct {                                                                                   \
		__uint(type, 1503);                                                                \
		__uint(max_entries, entries);                                                      \
		__type(key, __u32);                                                                \
		__type(value, kind);                                                               \
	} name SEC(".maps")

struct dims {
	__u32 m, n, k;
};

TABLE(vec_A, 4096, __u32);
TABLE(vec_B, 4096, __u32);
TABLE(vec_C, 4096, __u32);
TABLE(vec_N, 1, __u32);
TABLE(gemm_dims, 1, struct dims);
TABLE(gemm_A, 4096, __s32);
TABLE(gemm_B, 4096, __s32);
TABLE(gemm_C, 4096, __s32);

SEC("kprobe/__directly_run")
int cuda__run(void)
{
	char format[] = "directly run on GPU\n";

	print(format, sizeof(format));
	return 0;
}

SEC("kprobe/__directly_run")
int cuda__vec_add(void)
{
	struct xyz block, thread, shape;
	__u32 zero = 0;
	__u32 *n = bpf_map_lookup_elem(&vec_N, &zero);

	bpf_get_block_idx(&block.x, &block.y, &block.z);
	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	bpf_get_block_dim(&shape.x, &shape.y, &shape.z);
	__u32 i = block.x * shape.x + thread.x;
	if (!n || i >= *n)
		return 0;
	__u32 *a = bpf_map_lookup_elem(&vec_A, &i), *b = bpf_map_lookup_elem(&vec_B, &i);
	if (a && b) {
		__u32 sum = *a + *b;
		bpf_map_update_elem(&vec_C, &i, &sum, BPF_ANY);
	}
	return 0;
}

/* Fixed point with 16 fractional bits.  The bound of the loop is a number: one from a map alone
 * would not be proven (Linux refuses the original for that). */
SEC("kprobe/__directly_run")
int cuda__gemm(void)
{
	struct xyz block, thread, shape;
	__u32 zero = 0;
	struct dims *dims = bpf_map_lookup_elem(&gemm_dims, &zero);

	bpf_get_block_idx(&block.x, &block.y, &block.z);
	bpf_get_thread_idx(&thread.x, &thread.y, &thread.z);
	bpf_get_block_dim(&shape.x, &shape.y, &shape.z);
	__u32 row = block.y * shape.y + thread.y, column = block.x * shape.x + thread.x;
	if (!dims || row >= dims->m || column >= dims->n)
		return 0;
	__u32 n = dims->n, k = dims->k;
	__s32 sum = 0;
	for (__u32 i = 0; i < 64; i++) {
		if (i >= k)
			break;
		__u32 left = row * k + i, right = i * n + column;
		__s32 *a = bpf_map_lookup_elem(&gemm_A, &left);
		__s32 *b = bpf_map_lookup_elem(&gemm_B, &right);
		if (a && b)
			sum += *a * *b;
	}
	__u32 at = row * n + column;
	bpf_map_update_elem(&gemm_C, &at, &sum, BPF_ANY);
	return 0;
}
