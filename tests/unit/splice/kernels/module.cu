// What ties a kernel to its module: globals, constants, functions, strings, grid barriers.
#include <cooperative_groups.h>
#include <cassert>
#include <cstdio>
namespace cg = cooperative_groups;

__device__ int counter;
__device__ int pair[2] = {1, 2};
__device__ int *pointer = &pair[1];
__constant__ float coefficients[16];
__managed__ int managed;
__device__ float tile[4][8];

extern "C" __global__ void globals(float *o, int n) {
  atomicAdd(&counter, 1);
  o[n] = coefficients[n] + coefficients[3] + tile[2][n & 7];
  managed = *pointer;
  pair[1] = n;
}

__device__ __noinline__ float weigh(const float *p, int i) { return p[i] * coefficients[i + 1]; }

extern "C" __global__ void constant_pointer(float *o, int n) {
  const float *p = n > 3 ? coefficients : o;
  o[threadIdx.x] = weigh(p, n);
}

extern "C" __global__ void prints(int n) { printf("block %d of %d\n", blockIdx.x, n); }

extern "C" __global__ void asserts(int *p, int n) {
  assert(n > 3);
  p[n] = sinf(p[0] * 1e6f);
}

__device__ __noinline__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
extern "C" __global__ void recursion(int *o) { o[threadIdx.x] = fibonacci(o[0]); }

__device__ __noinline__ void leave(int n) { if (n > 3) asm volatile("exit;"); }
extern "C" __global__ void leaves_inside(int *o) { leave(o[0]); o[1] = 2; }

extern "C" __global__ void grid_barrier(int *o) {
  o[blockIdx.x] = 1;
  cg::this_grid().sync();
  if (blockIdx.x == 0) o[0] = o[gridDim.x - 1];
}

extern "C" __global__ void allocates(int n, int **o) { *o = (int *)malloc(n); }
