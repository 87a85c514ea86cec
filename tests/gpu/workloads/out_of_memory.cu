// Takes all device memory before its first launch, so that nobody else finds any.
#include <cuda_runtime.h>

#include "report.hpp"

extern "C" __global__ void squeezed(unsigned *out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] += 3;
}

#define CHECK(call) \
  if ((call) != cudaSuccess) return std::fprintf(stderr, "out_of_memory: %s failed\n", #call), 1

int main() {
  constexpr unsigned kBlocks = 16, kThreads = 256;
  Report report;
  unsigned *out, host[kBlocks * kThreads];
  cudaFuncAttributes attributes;
  CHECK(cudaMalloc(&out, sizeof host));
  CHECK(cudaMemset(out, 0, sizeof host));
  CHECK(cudaFuncGetAttributes(&attributes, squeezed));  // loads the kernel now
  size_t held = 0;
  for (size_t chunk = size_t{8} << 30; chunk >= (size_t{64} << 10); chunk /= 2) {
    void *memory;
    while (cudaMalloc(&memory, chunk) == cudaSuccess) held += chunk;
  }
  cudaGetLastError();  // the last failed allocation
  report.expect(held > (size_t{1} << 30), "less than 1 GiB was free");
  for (int i = 0; i < 100; ++i) {
    squeezed<<<kBlocks, kThreads>>>(out);
    report.launched("squeezed", {kBlocks}, {kThreads});
  }
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (unsigned value : host) report.expect(value == 300, "squeezed");
  report.result(host, sizeof host);
  return report.finish();
}
