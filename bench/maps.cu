// What map operations cost: kernels that do nothing, to be probed, and kernels that do the same
// atomics or stores themselves, without a map.
//
//     maps [LAUNCHES] [THREADS] [million]    one JSON object on standard output: microseconds by kernel
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#define CHECK(call)                                                                  \
  do {                                                                               \
    cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                      \
      std::fprintf(stderr, "maps: %s: %s\n", #call, cudaGetErrorString(error));      \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

constexpr int kWarmUp = 3;
constexpr unsigned kThreads = 256;
typedef unsigned long long u64;

// As bench/probes/keys.h chooses them.
__device__ unsigned mixed(unsigned id) {
  id *= 2654435761u;
  id ^= id >> 15;
  return id * 2246822519u;
}
__device__ unsigned thread_id() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ unsigned uniform() { return mixed(thread_id()) >> 16; }
__device__ unsigned zipf() {
  unsigned h = mixed(thread_id()), e = h >> 28;
  return 1u << e | (h >> 8 & ((1u << e) - 1));
}

#define IDLE(name) \
  extern "C" __global__ void name(u64 *table) { if (!table) __trap(); }
#define NATIVE(name, statement) \
  extern "C" __global__ void name(u64 *table) { if (!table) __trap(); statement; }

__device__ unsigned sm() {
  unsigned number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}
__device__ void warp_add(u64 *at) {
  unsigned lanes = __activemask();
  if ((threadIdx.x & 31) == __ffs(lanes) - 1) atomicAdd(at, (u64)__popc(lanes));
}

IDLE(idle)
IDLE(array_one) IDLE(array_spread) IDLE(sm_thread) IDLE(sm_warp)
IDLE(hash_add_uniform) IDLE(hash_add_zipf) IDLE(hash_add_million)
IDLE(hash_put_uniform) IDLE(hash_put_zipf)
IDLE(pinned_add_uniform) IDLE(pinned_put_uniform) IDLE(pinned_put_zipf)
NATIVE(native_array_one, atomicAdd(table, 1ull))
NATIVE(native_array_spread, atomicAdd(table + (thread_id() & 1023), 1ull))
NATIVE(native_sm_thread, atomicAdd(table + 16 * sm(), 1ull))
NATIVE(native_sm_warp, warp_add(table + 16 * sm()))
NATIVE(native_hash_add_uniform, atomicAdd(table + 4 * uniform(), 1ull))
NATIVE(native_hash_add_zipf, atomicAdd(table + 4 * zipf(), 1ull))
NATIVE(native_hash_add_million, atomicAdd(table + 4 * (mixed(thread_id()) >> 12), 1ull))
NATIVE(native_hash_put_uniform, table[4 * uniform()] = thread_id())
NATIVE(native_hash_put_zipf, table[4 * zipf()] = thread_id())

struct Kernel {
  const char *name;
  void (*run)(u64 *);
};
#define ROW(name) {#name, name}
static const Kernel kKernels[] = {
    ROW(idle), ROW(array_one), ROW(array_spread), ROW(sm_thread), ROW(sm_warp), ROW(hash_add_uniform),
    ROW(hash_add_zipf), ROW(hash_put_uniform), ROW(hash_put_zipf),
    ROW(pinned_add_uniform), ROW(pinned_put_uniform), ROW(pinned_put_zipf),
    ROW(native_array_one), ROW(native_array_spread), ROW(native_sm_thread), ROW(native_sm_warp),
    ROW(native_hash_add_uniform), ROW(native_hash_add_zipf), ROW(native_hash_put_uniform),
    ROW(native_hash_put_zipf),
};
// With a third argument instead: the map is large, and so is the memory that egpu needs for it.
static const Kernel kMillion[] = {ROW(idle), ROW(hash_add_million), ROW(native_hash_add_million)};

int main(int argc, char **argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 10;
  const unsigned threads = argc > 2 ? std::atoi(argv[2]) : 1u << 22;
  if (launches < 1 || threads < kThreads) return 2;
  u64 *table;
  CHECK(cudaMalloc(&table, (4u << 20) * sizeof(u64)));
  CHECK(cudaMemset(table, 0, (4u << 20) * sizeof(u64)));
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  std::printf("{\"launches\": %d, \"threads\": %u, \"us\": {", launches + kWarmUp,
              threads / kThreads * kThreads);
  const char *comma = "";
  const std::vector<Kernel> chosen =
      argc > 3 ? std::vector<Kernel>(std::begin(kMillion), std::end(kMillion))
               : std::vector<Kernel>(std::begin(kKernels), std::end(kKernels));
  for (const Kernel &kernel : chosen) {
    std::vector<float> times;
    for (int i = -kWarmUp; i < launches; ++i) {
      float milliseconds;
      if (i == 1 - kWarmUp) std::fprintf(stderr, "%s: first launch done\n", kernel.name);
      CHECK(cudaEventRecord(start));
      kernel.run<<<threads / kThreads, kThreads>>>(table);
      CHECK(cudaEventRecord(stop));
      CHECK(cudaEventSynchronize(stop));
      CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
      if (i >= 0) times.push_back(milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    std::printf("%s\"%s\": %.3f", comma, kernel.name, 1000.0 * times[times.size() / 2]);
    comma = ", ";
    std::fprintf(stderr, "%s %.1f us\n", kernel.name, 1000.0 * times[times.size() / 2]);
  }
  CHECK(cudaGetLastError());
  std::printf("}}\n");
  return 0;
}
