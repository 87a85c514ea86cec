// Kernels that exist as machine code only: built with -code=sm_90, without PTX.
//
// Each is there for something that splicing could disturb: lanes that leave while others go on,
// uniform registers and barriers that live across an exit, partial warps, variables, calls.
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <cstdlib>
#include <vector>

#include "report.hpp"

#define CHECK(call)                                                                     \
  do {                                                                                  \
    cudaError_t error = (call);                                                         \
    if (error != cudaSuccess) {                                                         \
      std::fprintf(stderr, "machine_code: %s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                                     \
    }                                                                                   \
  } while (0)

static Report report;

__device__ unsigned linear() {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  return block * (blockDim.x * blockDim.y * blockDim.z) +
         (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

// The bounds check at the top: some lanes of the last warp leave at once.
extern "C" __global__ void bounded(unsigned *out, const unsigned *in, unsigned n) {
  unsigned i = linear();
  if (i >= n) return;
  out[i] = in[i] * 3 + out[i];
}

// Five ways out, some of them before barriers of those that stay.
extern "C" __global__ void divergent(unsigned *out, unsigned n) {
  __shared__ unsigned seen[1024];
  unsigned i = linear(), lane = threadIdx.x % 32;
  seen[threadIdx.x] = 0;
  if (i >= n) return;
  if (lane % 7 == 3) {
    out[i] = 1;
    return;
  }
  if (lane == 5) {
    out[i] = 2;
    asm volatile("exit;");
  }
  unsigned turns = 0;
  for (unsigned value = i + 1; value > 1; value = value % 2 ? value - 1 : value / 2)
    if (++turns == 12) {
      out[i] = 3;
      return;
    }
  seen[threadIdx.x] = turns + 1;
  __syncthreads();
  unsigned neighbour = seen[(threadIdx.x + 1) % blockDim.x];
  if (lane % 2 == 0) {
    out[i] = 4 + (neighbour != 0);
    return;
  }
  __syncthreads();
  out[i] = 16 + turns;
}

// A lane leaves in every turn, while the loop's counter, bound and pointers are uniform registers.
extern "C" __global__ void one_by_one(unsigned *out, const unsigned *in, unsigned rows, unsigned step) {
  unsigned lane = threadIdx.x % 32, i = linear();
  unsigned sum = 0;
  for (unsigned row = 0; row < rows; ++row) {
    unsigned uniform = in[row * step] + row * 7 + blockIdx.x * step;
    sum = sum * 31 + uniform + __popc(__activemask());
    if (lane == row % 32 && row >= 8) {
      out[i] = sum;
      return;
    }
  }
  out[i] = ~sum;
}

// Lanes that leave by different ways at the same time, inside nested branches.
extern "C" __global__ void nested(unsigned *out, unsigned n) {
  unsigned i = linear(), lane = threadIdx.x % 32;
  unsigned value = i;
  if (i >= n) return;
  if (lane & 1) {
    if (lane & 2) {
      for (unsigned k = 0; k < lane; ++k) value = value * 5 + k;
      out[i] = value;
      return;
    }
    value ^= 0x55;
    if (lane & 4) {
      out[i] = value + 1;
      return;
    }
  } else {
    for (unsigned k = 0; k < 32; ++k) {
      value = value * 3 + (value >> 5 & 3);
      if (k == lane) {
        out[i] = value + 2;
        return;
      }
    }
  }
  out[i] = value + 3;
}

// Warps with different work: one loads, the others add up; the loader leaves early.
extern "C" __global__ void specialised(unsigned *out, const unsigned *in, unsigned tiles) {
  __shared__ unsigned tile[2][64];
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    for (unsigned t = 0; t < tiles; ++t) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      tile[t % 2][lane] = in[(blockIdx.x * tiles + t) * 64 + lane];
      tile[t % 2][lane + 32] = in[(blockIdx.x * tiles + t) * 64 + lane + 32];
      asm volatile("bar.sync 2, 128;" ::: "memory");
    }
    return;
  }
  unsigned sum = 0;
  for (unsigned t = 0; t < tiles; ++t) {
    asm volatile("bar.sync 1, 128;" ::: "memory");
    asm volatile("bar.sync 2, 128;" ::: "memory");
    sum = sum * 3 + tile[t % 2][lane] + tile[t % 2][(lane + warp * 16) % 64];
  }
  if (lane >= 24) return;
  out[(blockIdx.x * 3 + warp - 1) * 32 + lane] = sum;
}

extern "C" __global__ void reduced(unsigned *out, const unsigned *in, unsigned n) {
  extern __shared__ unsigned parts[];
  unsigned sum = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += in[i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (threadIdx.x == 0) atomicAdd(out, sum);
}

// Variables: two kernels and the host see the same ones.
__device__ unsigned visits;
__device__ unsigned buckets[64] = {5, 6, 7};
extern "C" __global__ void counting(unsigned weight) {
  atomicAdd(&visits, weight);
  atomicAdd(&buckets[linear() % 64], weight);
}
extern "C" __global__ void counting_again() { atomicAdd(&visits, buckets[linear() % 64] & 1); }

// A function that is called, and ends some of the threads.
__device__ __noinline__ unsigned ending(unsigned value, unsigned *out) {
  if (value % 5 == 2) {
    *out = 77;
    asm volatile("exit;");
  }
  return value * value + 1;
}
extern "C" __global__ void ends_inside(unsigned *out) {
  unsigned i = linear();
  out[i] = ending(i, out + i);
}

extern "C" __global__ void no_parameters() {
  if (threadIdx.x % 3 == 1) return;
  atomicAdd(&visits, 2u);
}

extern "C" __global__ void together(unsigned *data, unsigned *total) {
  cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  unsigned i = linear();
  data[i] = i + 1;
  grid.sync();
  atomicAdd(total, data[(i + 97) % static_cast<unsigned>(grid.size())]);
}

// Tensor cores, and more registers than a probe takes.
extern "C" __global__ void __launch_bounds__(128) tensor(float *c, const half *a, const half *b, int n) {
  using namespace nvcuda::wmma;
  int warp = threadIdx.x / 32, row = blockIdx.y * 32 + warp / 2 * 16, column = blockIdx.x * 32 + warp % 2 * 16;
  fragment<matrix_a, 16, 16, 16, half, row_major> left;
  fragment<matrix_b, 16, 16, 16, half, row_major> right;
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.0f);
  for (int k = 0; k < n; k += 16) {
    load_matrix_sync(left, a + row * n + k, n);
    load_matrix_sync(right, b + k * n + column, n);
    mma_sync(sum, left, right, sum);
  }
  store_matrix_sync(c + row * n + column, sum, n, mem_row_major);
}

// Sets many registers at once, which a probe at its entry may have stored from a moment before.
extern "C" __global__ void zeroed(unsigned *out, unsigned turns) {
  unsigned sums[24] = {};
  for (unsigned turn = 0; turn < turns; ++turn)
#pragma unroll
    for (unsigned k = 0; k < 24; ++k) sums[k] = (sums[k] ^ turn) * 5 + (sums[(k + 1) % 24] ^ threadIdx.x);
  unsigned sum = 0;
#pragma unroll
  for (unsigned k = 0; k < 24; ++k) sum = sum * 31 + sums[k];
  out[linear()] = sum;
}

template <typename T>
static T *device(const std::vector<T> &values) {
  T *pointer;
  CHECK(cudaMalloc(&pointer, values.size() * sizeof(T)));
  CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}

template <typename T>
static void digest(const T *pointer, size_t count) {
  std::vector<T> values(count);
  CHECK(cudaMemcpy(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost));
  report.result(values.data(), count * sizeof(T));
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 40;
  const unsigned count = 1 << 20;
  std::vector<unsigned> numbers(count);
  for (unsigned i = 0; i < count; ++i) numbers[i] = i * 2654435761u >> 7;
  std::vector<half> halves(256 * 256);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = __float2half(static_cast<int>(i * 7 % 13) - 6);
  unsigned *in = device(numbers), *out = device(std::vector<unsigned>(count));
  half *a = device(halves);
  float *c = device(std::vector<float>(256 * 256));

  for (int round = 0; round < rounds; ++round) {
    for (unsigned block : {1u, 31u, 32u, 33u, 96u, 257u, 1024u}) {
      unsigned grid = 1 + (round * 37 + block) % 150, threads = grid * block;
      bounded<<<grid, block>>>(out, in, threads - threads / 5);
      report.launched("bounded", {grid}, {block});
      divergent<<<grid, block>>>(out, threads - threads / 9);
      report.launched("divergent", {grid}, {block});
      one_by_one<<<grid, block>>>(out, in, 20 + round % 40, 17);
      report.launched("one_by_one", {grid}, {block});
      nested<<<grid, block>>>(out, threads - threads / 7);
      report.launched("nested", {grid}, {block});
      ends_inside<<<grid, block>>>(out);
      report.launched("ends_inside", {grid}, {block});
      counting<<<grid, block>>>(round + 1);
      report.launched("counting", {grid}, {block});
      counting_again<<<grid, block>>>();
      report.launched("counting_again", {grid}, {block});
      no_parameters<<<grid, block>>>();
      report.launched("no_parameters", {grid}, {block});
      digest(out, threads);
    }
    specialised<<<100, 128>>>(out, in, 9);
    report.launched("specialised", {100}, {128});
    digest(out, 100 * 3 * 32);
    reduced<<<50, 256, 32 * sizeof(unsigned)>>>(out, in, count);
    report.launched("reduced", {50}, {256});
    digest(out, 1);
    zeroed<<<600, 1024>>>(out, 2);
    report.launched("zeroed", {600}, {1024});
    digest(out, 600 * 1024);
    dim3 shape(3, 5, 2), threads(7, 3, 2);
    bounded<<<shape, threads>>>(out, in, 1000);
    report.launched("bounded", {3, 5, 2}, {7, 3, 2});
    tensor<<<dim3(8, 8), 128>>>(c, a, a, 256);
    report.launched("tensor", {8, 8}, {128});
    digest(c, 256 * 256);
    unsigned *total = out + 100000;
    CHECK(cudaMemset(total, 0, sizeof *total));
    void *arguments[] = {&out, &total};
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(together), dim3(66), dim3(192), arguments));
    report.launched("together", {66}, {192});
    digest(total, 1);
  }
  CHECK(cudaDeviceSynchronize());
  unsigned seen[65];
  CHECK(cudaMemcpyFromSymbol(seen, visits, sizeof visits));
  CHECK(cudaMemcpyFromSymbol(seen + 1, buckets, sizeof buckets));
  report.result(seen, sizeof seen);
  return report.finish();
}
