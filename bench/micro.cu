// A vector addition under one small probe at a time, in the sizes of bpftime's micro-benchmark.
//
//     micro [DIVISOR]    one JSON object on standard output: microseconds a launch, by size and kernel;
//                        DIVISOR makes fewer launches
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                  \
  do {                                                                               \
    cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                      \
      std::fprintf(stderr, "micro: %s: %s\n", #call, cudaGetErrorString(error));     \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

#define KERNEL(name)                                                                               \
  extern "C" __global__ void name(const float *a, const float *b, float *c, int n) {               \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                                 \
    if (i < n) c[i] = a[i] + b[i];                                                                 \
  }
#define KERNELS(X)                                                                                 \
  X(baseline) X(control) X(empty) X(entry) X(exit_only) X(both) X(ring_output) X(globaltimer)      \
  X(array_update) X(array_lookup) X(hash_update) X(hash_lookup) X(hash_delete) X(per_thread_lookup) \
  X(gpu_array_update) X(gpu_array_lookup) X(shared_array_update) X(shared_array_lookup) X(memtrace)
KERNELS(KERNEL)

struct Kernel {
  const char *name;
  void (*run)(const float *, const float *, float *, int);
};
#define ROW(name) {#name, name},
static const Kernel kKernels[] = {KERNELS(ROW)};

struct Size {
  const char *name;
  int elements, launches, threads, blocks;
};
static const Size kSizes[] = {
    {"tiny", 32, 10000, 32, 1},           {"small", 1000, 10000, 256, 4},
    {"medium", 10000, 10000, 256, 40},    {"large", 100000, 1000, 512, 196},
    {"xlarge", 1000000, 1000, 512, 1954},
};

int main(int argc, char **argv) {
  const int divisor = argc > 1 ? std::atoi(argv[1]) : 10;
  if (divisor < 1) return 2;
  float *a, *b, *c;
  for (float **p : {&a, &b, &c}) {
    CHECK(cudaMalloc(p, 1000000 * sizeof(float)));
    CHECK(cudaMemset(*p, 0, 1000000 * sizeof(float)));
  }
  std::printf("{");
  const char *outer = "";
  for (const Size &size : kSizes) {
    const int launches = size.launches / divisor > 0 ? size.launches / divisor : 1;
    std::printf("%s\"%s\": {", outer, size.name);
    outer = ", ";
    const char *comma = "";
    for (const Kernel &kernel : kKernels) {
      double least = 1e30;
      for (int round = -1; round < 3; ++round) {  // the first is where twins are built
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < (round < 0 ? 3 : launches); ++i)
          kernel.run<<<size.blocks, size.threads>>>(a, b, c, size.elements);
        CHECK(cudaDeviceSynchronize());
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
        if (round >= 0 && took.count() / launches < least) least = took.count() / launches;
      }
      std::printf("%s\"%s\": %.3f", comma, kernel.name, least);
      comma = ", ";
    }
    std::printf("}");
    std::fprintf(stderr, "%s done\n", size.name);
  }
  CHECK(cudaGetLastError());
  std::printf("}\n");
  return 0;
}
