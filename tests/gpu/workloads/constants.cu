// Constant variables that the program writes before the first launch and between launches.
#include <cuda_runtime.h>

#include <cstdlib>
#include <vector>

#include "report.hpp"

#define CHECK(call)                                                                  \
  do {                                                                               \
    cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                      \
      std::fprintf(stderr, "constants: %s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

static Report report;

__constant__ unsigned factor = 3;
__constant__ unsigned table[257];
static __constant__ unsigned long long weights[4] = {1, 2, 3, 4};

// One constant by its place, one by an index that differs from lane to lane, one through a pointer.
extern "C" __global__ void scaled(unsigned long long *out, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const unsigned long long *some = i % 2 ? weights : weights + 2;
  out[i] = out[i] * factor + table[i % 257] + some[i / 2 % 2];
}

// Has none.
extern "C" __global__ void plain(unsigned long long *out, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] ^= i;
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
  const unsigned n = 40000;
  unsigned long long *out;
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&out, n * sizeof *out));
  CHECK(cudaMemset(out, 0, n * sizeof *out));
  CHECK(cudaDeviceSynchronize());
  std::vector<unsigned long long> expected(n), found(n);
  std::vector<unsigned> values(257);
  unsigned long long own[4] = {1, 2, 3, 4};
  unsigned own_factor = 3;
  for (int round = 0; round < rounds; ++round) {
    for (unsigned k = 0; k < 257; ++k) values[k] = k * 2654435761u >> (round % 16);
    own[round % 4] += round;
    if (round % 3 == 1) own_factor = round + 5;
    CHECK(cudaMemcpyToSymbolAsync(table, values.data(), 257 * sizeof(unsigned), 0, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyToSymbolAsync(weights, own, sizeof own, 0, cudaMemcpyHostToDevice, stream));
    if (round % 3 == 1)
      CHECK(cudaMemcpyToSymbolAsync(factor, &own_factor, sizeof own_factor, 0, cudaMemcpyHostToDevice, stream));
    unsigned block = 33 + round * 37 % 900, grid = (n + block - 1) / block;
    scaled<<<grid, block, 0, stream>>>(out, n);
    report.launched("scaled", {grid}, {block});
    plain<<<grid, block, 0, stream>>>(out, n);
    report.launched("plain", {grid}, {block});
    CHECK(cudaStreamSynchronize(stream));
    for (unsigned i = 0; i < n; ++i) {
      const unsigned long long *some = i % 2 ? own : own + 2;
      expected[i] = (expected[i] * own_factor + values[i % 257] + some[i / 2 % 2]) ^ i;
    }
  }
  CHECK(cudaMemcpy(found.data(), out, n * sizeof *out, cudaMemcpyDeviceToHost));
  report.expect(found == expected, "values computed with constants");
  report.result(found.data(), n * sizeof *out);
  return report.finish();
}
