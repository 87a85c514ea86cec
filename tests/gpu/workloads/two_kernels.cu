// Two kernels in two streams, which run at the same time: LAUNCHES times THREADS threads of each.
#include <cuda_runtime.h>

#include <cstdlib>

#include "report.hpp"

extern "C" __global__ void first(unsigned *out) {
  if (threadIdx.x == 0 && blockIdx.x % 512 == 0) atomicAdd(out, 1u);
}

// Blocks that are no multiple of a warp, and lanes that leave early.
extern "C" __global__ void second(unsigned *out) {
  if (threadIdx.x & 1) return;
  if (threadIdx.x == 0 && blockIdx.x % 512 == 0) atomicAdd(out + 1, 1u);
}

int main(int count, char **words) {
  const unsigned launches = count > 1 ? std::atoi(words[1]) : 8;
  const unsigned blocks = count > 2 ? std::atoi(words[2]) : 8192;
  Report report;
  unsigned *out, found[2] = {0, 0};
  cudaStream_t streams[2];
  if (cudaMalloc(&out, sizeof found) != cudaSuccess) return 1;
  if (cudaMemset(out, 0, sizeof found) != cudaSuccess) return 1;
  for (cudaStream_t &stream : streams)
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  for (unsigned i = 0; i < launches; ++i) {
    first<<<blocks, 256, 0, streams[0]>>>(out);
    second<<<blocks, 250, 0, streams[1]>>>(out);
  }
  report.launched("first", {blocks}, {256}, launches);
  report.launched("second", {blocks}, {250}, launches);
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  if (cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  const unsigned expected = launches * ((blocks + 511) / 512);
  report.expect(found[0] == expected && found[1] == expected, "two kernels");
  report.result(found, sizeof found);
  return report.finish();
}
