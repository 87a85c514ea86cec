// What ring output costs: kernels that do nothing, to be probed, and kernels that store the same
// bytes to mapped host memory themselves.
//
//     rings [LAUNCHES] [THREADS]    one JSON object on standard output: microseconds by kernel
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                  \
  do {                                                                               \
    cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                      \
      std::fprintf(stderr, "rings: %s: %s\n", #call, cudaGetErrorString(error));     \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

constexpr int kWarmUp = 2;
constexpr unsigned kThreads = 256, kDrain = 120000;  // microseconds for the reader after a launch

__device__ unsigned thread_id() { return blockIdx.x * blockDim.x + threadIdx.x; }

template <unsigned kBytes>
__device__ void put(char *host, unsigned number) {
  uint4 *at = reinterpret_cast<uint4 *>(host + size_t{number} * kBytes);
#pragma unroll
  for (unsigned i = 0; i < kBytes / 16; ++i) at[i] = uint4{number, number, number, number};
}

#define IDLE(name) extern "C" __global__ void name(char *host) { if (!host) __trap(); }
#define THREAD(bytes) \
  IDLE(ring_thread_##bytes) \
  extern "C" __global__ void native_thread_##bytes(char *host) { put<bytes>(host, thread_id()); }
#define WARP(bytes) \
  IDLE(ring_warp_##bytes) \
  extern "C" __global__ void native_warp_##bytes(char *host) { \
    if (threadIdx.x % 32 == 0) put<bytes>(host, thread_id() / 32); \
  }
IDLE(idle)
THREAD(16) THREAD(32) THREAD(64) WARP(16) WARP(32) WARP(64)

struct Kernel {
  const char *name;
  void (*run)(char *);
  unsigned threads;  // for one record, in shifts
};
#define ROWS(kind, shift, bytes) \
  {"ring_" #kind "_" #bytes, ring_##kind##_##bytes, shift}, \
  {"native_" #kind "_" #bytes, native_##kind##_##bytes, shift}
static const Kernel kKernels[] = {
    {"idle", idle, 0},      ROWS(thread, 0, 16), ROWS(thread, 0, 32), ROWS(thread, 0, 64),
    {"idle_warps", idle, 4}, ROWS(warp, 4, 16),   ROWS(warp, 4, 32),   ROWS(warp, 4, 64),
};

int main(int argc, char **argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 5;
  const unsigned threads = argc > 2 ? std::atoi(argv[2]) : 1u << 20;
  if (launches < 1 || threads < kThreads) return 2;
  char *host, *mapped;
  CHECK(cudaHostAlloc(&host, size_t{threads} * 64, cudaHostAllocMapped));
  CHECK(cudaHostGetDevicePointer(&mapped, host, 0));
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  std::printf("{\"launches\": %d, \"threads\": %u, \"us\": {", launches + kWarmUp,
              threads / kThreads * kThreads);
  const char *comma = "";
  for (const Kernel &kernel : kKernels) {
    std::vector<float> times;
    for (int i = -kWarmUp; i < launches; ++i) {
      float milliseconds;
      CHECK(cudaEventRecord(start));
      kernel.run<<<(threads << kernel.threads) / kThreads, kThreads>>>(mapped);
      CHECK(cudaEventRecord(stop));
      CHECK(cudaEventSynchronize(stop));
      CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
      if (i >= 0) times.push_back(milliseconds);
      if (kernel.name[0] == 'r') usleep(kDrain);
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
