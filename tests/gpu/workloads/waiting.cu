// A kernel that runs until another one, launched after it, has run: whoever puts work between the
// two that needs the device to itself stops both.  Each is launched once before, since the driver
// loads nothing beside a running kernel.  Gives up after a while and says so.
#include <cuda_runtime.h>

#include "report.hpp"

constexpr unsigned long long kPatience = 8000000000ull;  // ns

__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

extern "C" __global__ void waits(volatile unsigned *flag, unsigned *late) {
  unsigned long long begun = now();
  while (*flag == 0)
    if (now() - begun > kPatience) {
      atomicExch(late, 1u);
      break;
    }
}

extern "C" __global__ void sets(volatile unsigned *flag) { *flag = 1; }

#define CHECK(call) \
  if ((call) != cudaSuccess) return std::fprintf(stderr, "waiting: %s failed\n", #call), 1

int main() {
  Report report;
  unsigned *flag, *late, seen = 0;
  cudaStream_t first, second;
  cudaFuncAttributes attributes;  // asking for them loads the kernels
  CHECK(cudaFuncGetAttributes(&attributes, waits));
  CHECK(cudaFuncGetAttributes(&attributes, sets));
  CHECK(cudaMalloc(&flag, sizeof *flag));
  CHECK(cudaMalloc(&late, sizeof *late));
  CHECK(cudaMemset(late, 0, sizeof *late));
  CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  sets<<<1, 32, 0, first>>>(flag);
  report.launched("sets", {1}, {32});
  waits<<<1, 32, 0, first>>>(flag, late);
  report.launched("waits", {1}, {32});
  for (int i = 0; i < 5; ++i) {
    CHECK(cudaMemsetAsync(flag, 0, sizeof *flag, first));
    CHECK(cudaStreamSynchronize(first));
    waits<<<1, 32, 0, first>>>(flag, late);
    report.launched("waits", {1}, {32});
    sets<<<1, 32, 0, second>>>(flag);
    report.launched("sets", {1}, {32});
    CHECK(cudaStreamSynchronize(first));
    CHECK(cudaStreamSynchronize(second));
  }
  CHECK(cudaMemcpy(&seen, late, sizeof seen, cudaMemcpyDeviceToHost));
  report.expect(seen == 0, "a kernel did not run beside the one that waits for it");
  report.result(&seen, sizeof seen);
  return report.finish();
}
