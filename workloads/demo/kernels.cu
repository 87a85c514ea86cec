// The demo's five kernels.  They are ordinary CUDA C++ and know nothing of egpu.
//
// kernels.ptx beside this file is their PTX, committed so that no compiler is needed to run the demo:
//
//     nvcc -ptx -arch=compute_75 -o kernels.ptx kernels.cu
//
// `python workloads/demo/build_ptx.py --check` says whether it is up to date.

// Two input streams, one output; the last block is partly idle.
extern "C" __global__ void vecadd(const float *a, const float *b, float *sum, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sum[i] = a[i] + b[i];
}

// Tiles in shared memory, two barriers per tile.  A template: its name is mangled.
template <int TILE>
__global__ void matmul(const float *a, const float *b, float *c, int n) {
  __shared__ float left[TILE][TILE];
  __shared__ float right[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y;
  int column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int tile = 0; tile < n; tile += TILE) {
    int k = tile + threadIdx.x;
    left[threadIdx.y][threadIdx.x] = row < n && k < n ? a[row * n + k] : 0.0f;
    k = tile + threadIdx.y;
    right[threadIdx.y][threadIdx.x] = k < n && column < n ? b[k * n + column] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = sum;
}

template __global__ void matmul<16>(const float *, const float *, float *, int);

// Shuffles inside a warp, shared memory between warps, one atomic per block.
extern "C" __global__ void reduce_sum(const unsigned *values, unsigned long long *total, int n) {
  __shared__ unsigned long long partial[32];
  unsigned long long sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += values[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = lane < (blockDim.x + 31) / 32 ? partial[lane] : 0;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) atomicAdd(total, sum);
}

// Atomics in shared memory first, then one per bin and block in global memory.
extern "C" __global__ void histogram(const unsigned char *values, unsigned *bins, int n) {
  __shared__ unsigned local[64];
  for (int bin = threadIdx.x; bin < 64; bin += blockDim.x) local[bin] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&local[values[i] % 64], 1u);
  __syncthreads();
  for (int bin = threadIdx.x; bin < 64; bin += blockDim.x)
    if (local[bin] != 0) atomicAdd(&bins[bin], local[bin]);
}

namespace demo {

// Lanes of a warp leave at four places and after different numbers of turns; no barrier follows.
__global__ void collatz(const unsigned *start, unsigned *steps, int n, unsigned limit) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned value = start[i];
  if (value == 0) {
    steps[i] = 0xffffffffu;
    return;
  }
  unsigned count = 0;
  while (value != 1) {
    if (count == limit) {
      steps[i] = limit | 0x80000000u;
      asm volatile("exit;");  // a second way out, which the compiler cannot merge with the others
    }
    value = value % 2 == 0 ? value / 2 : 3 * value + 1;
    ++count;
  }
  steps[i] = count;
}

}  // namespace demo
