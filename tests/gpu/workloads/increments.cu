// One launch of exactly 100,000,000 threads.
#include <cuda_runtime.h>

#include "report.hpp"

extern "C" __global__ void many(unsigned *out) {
  if (threadIdx.x == 0 && blockIdx.x % 1000 == 0) atomicAdd(out, 1u);
}

int main() {
  Report report;
  unsigned *out, count = 0;
  if (cudaMalloc(&out, sizeof *out) != cudaSuccess) return 1;
  if (cudaMemset(out, 0, sizeof *out) != cudaSuccess) return 1;
  many<<<390625, 256>>>(out);
  report.launched("many", {390625}, {256});
  if (cudaMemcpy(&count, out, sizeof count, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  report.expect(count == 391, "many");
  report.result(&count, sizeof count);
  return report.finish();
}
