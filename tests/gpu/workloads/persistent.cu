// A grid sized from its own occupancy whose blocks wait for each other: it hangs when a copy with
// fewer resident blocks runs in its place.  Gives up after a while and says so.
#include <cuda_runtime.h>

#include "report.hpp"

__device__ unsigned arrived;
extern "C" __global__ void persistent(unsigned *result) {
  if (threadIdx.x == 0) {
    atomicAdd(&arrived, 1u);
    unsigned long long turns = 0;
    while (atomicAdd(&arrived, 0u) < gridDim.x)
      if (++turns == 20000000ull) {
        atomicExch(result, 1u);
        break;
      }
  }
  __syncthreads();
}

#define CHECK(call) \
  if ((call) != cudaSuccess) return std::fprintf(stderr, "persistent: %s failed\n", #call), 1

int main() {
  Report report;
  unsigned *result, late = 0, zero = 0;
  int per_sm = 0, sms = 0;
  CHECK(cudaMalloc(&result, sizeof *result));
  CHECK(cudaMemset(result, 0, sizeof *result));
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, persistent, 1024, 0));
  const unsigned blocks = static_cast<unsigned>(per_sm * sms);
  for (int i = 0; i < 10; ++i) {
    CHECK(cudaMemcpyToSymbol(arrived, &zero, sizeof zero));
    persistent<<<blocks, 1024>>>(result);
    report.launched("persistent", {blocks}, {1024});
  }
  CHECK(cudaMemcpy(&late, result, sizeof late, cudaMemcpyDeviceToHost));
  report.expect(late == 0, "not all blocks were resident");
  report.result(&late, sizeof late);
  return report.finish();
}
