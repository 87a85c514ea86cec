// Compiled by clang without CUDA's headers.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
__device__ int total;
__constant__ int limits[4];
struct Pair { int a, b; };
extern "C" __device__ int vprintf(const char *, const char *);
__device__ __attribute__((noinline)) int twice(Pair p) { return p.a * 2 + p.b; }
extern "C" __global__ void clang_kernel(int *o, Pair p, unsigned n) {
  __shared__ int s[64];
  unsigned t = __nvvm_read_ptx_sreg_tid_x();
  if (t >= n) return;
  s[t & 63] = limits[t & 3];
  __nvvm_bar_sync(0);
  o[t] = s[(t + 1) & 63] + twice(p);
  __nvvm_atom_add_gen_i(&total, 1);
  if (o[t] == 3) vprintf("three\n", nullptr);
}
