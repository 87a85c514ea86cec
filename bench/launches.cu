// What one kernel launch costs the launching thread, in nanoseconds.
//
//     launches [BATCHES]     one JSON object: least and median over the batches
//
// A batch is fewer launches than the driver's queue holds, so no launch waits for the device.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" __global__ void empty(unsigned *unused) {
  if (unused != nullptr && *unused == 1) *unused = 2;
}

#define CHECK(call) \
  if ((call) != cudaSuccess) return std::fprintf(stderr, "launches: %s failed\n", #call), 1

int main(int argc, char **argv) {
  constexpr int kBatch = 400;
  const int batches = argc > 1 ? std::atoi(argv[1]) : 400;
  if (batches < 1) return 2;
  std::vector<double> per_launch;
  CHECK(cudaFree(nullptr));
  for (int batch = -20; batch < batches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) empty<<<1, 32>>>(nullptr);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    CHECK(cudaDeviceSynchronize());
    if (batch >= 0) per_launch.push_back(time.count() / kBatch);
  }
  std::sort(per_launch.begin(), per_launch.end());
  std::printf("{\"least_ns\": %.1f, \"median_ns\": %.1f, \"launches\": %d}\n", per_launch.front(),
              per_launch[per_launch.size() / 2], (batches + 20) * kBatch);
  return 0;
}
