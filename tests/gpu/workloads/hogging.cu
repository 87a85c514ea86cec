// Kernels that use nearly all uniform registers of a warp while its lanes leave one by one: built with
// -code=sm_90, without PTX.  A probe that writes one of them changes what all other lanes compute.
#include <cuda_runtime.h>

#include <cstdlib>
#include <vector>

#include "report.hpp"

#define CHECK(call)                                                                \
  do {                                                                             \
    cudaError_t error = (call);                                                    \
    if (error != cudaSuccess) {                                                    \
      std::fprintf(stderr, "hogging: %s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)

static Report report;

struct Seeds {
  unsigned value[64];
};

// VALUES numbers that are the same in all lanes and change in every round; a lane leaves in one of 8.
template <int VALUES>
static __device__ void hog(unsigned *out, unsigned rounds, const Seeds &seeds) {
  unsigned uniform[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; ++i) uniform[i] = seeds.value[i];
  unsigned own = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
  unsigned turn = (threadIdx.x * 5 + threadIdx.x / 32) % 8;
#pragma unroll 1
  for (unsigned round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i)
      uniform[i] += uniform[(i + 1) % VALUES] * uniform[(i + 7) % VALUES];
    sum = (sum ^ uniform[0]) + uniform[3];
    out[own] = sum;
    // No branch: lanes that go on stay together, and ptxas keeps their values in uniform registers.
    asm volatile("{ .reg .pred leaves; setp.eq.u32 leaves, %0, %1; @leaves exit; }" ::"r"(turn), "r"(round));
  }
}

#define HOG(values)                                                                                \
  extern "C" __global__ void hog_##values(unsigned *out, unsigned rounds, Seeds seeds) {           \
    hog<values>(out, rounds, seeds);                                                               \
  }
HOG(40)
HOG(50)
HOG(54)
HOG(56)

struct Kernel {
  const char *name;
  void (*kernel)(unsigned *, unsigned, Seeds);
};
static const Kernel kernels[] = {{"hog_40", hog_40}, {"hog_50", hog_50}, {"hog_54", hog_54}, {"hog_56", hog_56}};

// hogging TIMES: each kernel so often in each shape.
int main(int argc, char **argv) {
  unsigned times = argc > 1 ? std::atoi(argv[1]) : 10;
  const unsigned blocks = 29, most = 1023;
  unsigned *out;
  CHECK(cudaMalloc(&out, blocks * most * sizeof(unsigned)));
  std::vector<unsigned> found(blocks * most);
  for (const Kernel &each : kernels)
    for (unsigned block : {1u, 7u, 31u, 33u, 97u, 255u, 511u, most}) {
      CHECK(cudaMemset(out, 0, blocks * most * sizeof(unsigned)));
      for (unsigned time = 0; time < times; ++time) {
        Seeds seeds;
        for (unsigned i = 0; i < 64; ++i) seeds.value[i] = 2654435761u * (i + 1) + time * 40503u + block;
        unsigned rounds = 3 + time % 9;  // fewer than there are turns: the rest leave at the end
        each.kernel<<<blocks, block>>>(out, rounds, seeds);
        CHECK(cudaGetLastError());
        report.launched(each.name, {blocks}, {block});
        if (time % 10 == 0 || time + 1 == times) {
          CHECK(cudaMemcpy(found.data(), out, blocks * block * sizeof(unsigned), cudaMemcpyDeviceToHost));
          report.result(found.data(), blocks * block * sizeof(unsigned));
        }
      }
    }
  CHECK(cudaFree(out));
  return report.finish();
}
