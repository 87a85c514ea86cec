// Launches for some seconds, whatever happens around it, and writes its result to a file.
//
//     long_running SECONDS FILE     FILE.started appears after the first launches
#include <cuda_runtime.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "report.hpp"

extern "C" __global__ void step(unsigned long long *state) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  state[i] = state[i] * 6364136223846793005ull + 1442695040888963407ull;
}

#define CHECK(call) \
  if ((call) != cudaSuccess) return std::fprintf(stderr, "long_running: %s failed\n", #call), 1

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  constexpr unsigned kBlocks = 64, kThreads = 128, kRounds = 40;
  const double seconds = std::atof(argv[1]);
  const std::string path = argv[2];
  Report report;
  unsigned long long *state, host[kBlocks * kThreads];
  CHECK(cudaMalloc(&state, sizeof host));
  CHECK(cudaMemset(state, 0, sizeof host));
  // The number of launches is fixed, so that the result is; the pauses between them fill the time.
  const auto start = std::chrono::steady_clock::now();
  for (unsigned round = 0; round < kRounds; ++round) {
    for (int i = 0; i < 50; ++i) {
      step<<<kBlocks, kThreads>>>(state);
      report.launched("step", {kBlocks}, {kThreads});
    }
    CHECK(cudaDeviceSynchronize());
    if (round == 0) {
      FILE *started = std::fopen((path + ".started").c_str(), "w");
      if (started == nullptr) return 1;
      std::fclose(started);
    }
    const double due = seconds * (round + 1) / kRounds;
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < due) {
    }
  }
  CHECK(cudaMemcpy(host, state, sizeof host, cudaMemcpyDeviceToHost));
  unsigned long long expected = 0;
  for (unsigned i = 0; i < kRounds * 50; ++i)
    expected = expected * 6364136223846793005ull + 1442695040888963407ull;
  for (unsigned long long value : host) report.expect(value == expected, "state");
  report.result(host, sizeof host);
  FILE *file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return 1;
  const int code = report.finish(file);
  std::fclose(file);
  report.finish();
  return code;
}
