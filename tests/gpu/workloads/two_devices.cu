// Two devices in one process: a thread for each, threads that go from one to the other, graphs on both.
//
//     two_devices [ROUNDS]
//
// The last line has the totals of all devices; the line before it what each device was given, by kernel:
// {"devices": {"kernel": [[threads, blocks], ...]}}.  Exit code 77 with fewer than two devices.
#include <cuda_runtime.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "report.hpp"

#define CHECK(call)                                                                    \
  do {                                                                                 \
    cudaError_t error = (call);                                                        \
    if (error != cudaSuccess) {                                                        \
      std::fprintf(stderr, "two_devices: %s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (0)

static const int kMissing = 77, kDevices = 2, kNodes = 6;
static const unsigned kCount = 1 << 14;
static Report report;

__device__ unsigned long long visits;  // each device has its own

// Lanes leave at three places.
extern "C" __global__ void churn(unsigned *data, unsigned n, unsigned seed) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned value = data[i] * 1664525u + seed;
  if ((value >> 9) % 3 == 1) {
    data[i] = value ^ 0x1234;
    return;
  }
  data[i] = value + 1;
}

// Adds to the module's own variable of the device that it runs on.
extern "C" __global__ void visit(unsigned amount) {
  if (threadIdx.x % 2) return;
  atomicAdd(&visits, amount);
}

struct Device {
  int number = 0;
  unsigned *data = nullptr;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t graph = nullptr;
  unsigned long long visits = 0, threads[2] = {}, blocks[2] = {};
  std::mutex mutex;      // several threads launch on one device
  std::mutex replaying;  // executable graphs are not to be launched by two threads at once

  void count(int kernel, unsigned grid, unsigned block) {
    static const char *names[] = {"churn", "visit"};
    report.launched(names[kernel], {grid}, {block});
    std::lock_guard<std::mutex> hold(mutex);
    threads[kernel] += 1ull * grid * block;
    blocks[kernel] += grid;
    if (kernel == 1) visits += 1ull * grid * ((block + 1) / 2) * (number + 3);
  }

  void launch(unsigned turn, bool counted) {
    static const unsigned sizes[] = {1, 31, 33, 64, 95, 128, 257, 512};
    unsigned block = sizes[turn % 8], grid = 1 + turn * 5 % 23;
    if (turn % 2) {
      visit<<<grid, block, 0, stream>>>(number + 3);
    } else {
      churn<<<grid, block, 0, stream>>>(data, grid * block * 7 / 8, 17 * number + 5);
    }
    CHECK(cudaGetLastError());
    if (counted) count(turn % 2, grid, block);
  }

  void replay() {
    {
      std::lock_guard<std::mutex> hold(replaying);
      CHECK(cudaGraphLaunch(graph, stream));
    }
    static const unsigned sizes[] = {1, 31, 33, 64, 95, 128, 257, 512};
    for (unsigned turn = 40; turn < 40 + kNodes; ++turn) count(turn % 2, 1 + turn * 5 % 23, sizes[turn % 8]);
  }

  void prepare() {
    CHECK(cudaSetDevice(number));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&data, kCount * sizeof(unsigned)));
    CHECK(cudaMemset(data, 3 + number, kCount * sizeof(unsigned)));
    CHECK(cudaDeviceSynchronize());
    launch(0, true);  // loaded before anything is captured
    launch(1, true);
    cudaGraph_t captured;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (unsigned turn = 40; turn < 40 + kNodes; ++turn) launch(turn, false);
    CHECK(cudaStreamEndCapture(stream, &captured));
    CHECK(cudaGraphInstantiate(&graph, captured, 0));
    CHECK(cudaGraphDestroy(captured));
  }

  void finish() {
    CHECK(cudaSetDevice(number));
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned> found(kCount);
    CHECK(cudaMemcpy(found.data(), data, kCount * sizeof(unsigned), cudaMemcpyDeviceToHost));
    report.result(found.data(), kCount * sizeof(unsigned));
    unsigned long long seen = 0;
    CHECK(cudaMemcpyFromSymbol(&seen, ::visits, sizeof seen));
    report.result(&seen, sizeof seen);
    report.expect(seen == visits, "a device's own variable");
  }
};

static Device devices[kDevices];

// All launches of a stream are in order, so results do not depend on how threads meet: `churn` of one device
// has one seed, and how often it ran over an element is the same in any order.
static void on_one(Device *device, int rounds) {
  CHECK(cudaSetDevice(device->number));
  for (int turn = 0; turn < rounds * (2 + device->number); ++turn) device->launch(turn, true);
}

static void on_both(int first, int rounds) {
  for (int turn = 0; turn < rounds; ++turn) {
    Device &device = devices[(first + turn) % kDevices];
    CHECK(cudaSetDevice(device.number));
    device.launch(turn, true);
    if (turn % 50 == 0) device.replay();
  }
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 500, count = 0;
  CHECK(cudaGetDeviceCount(&count));
  if (count < kDevices) {
    std::fprintf(stderr, "two_devices: %d device\n", count);
    return kMissing;
  }
  for (int number = 0; number < kDevices; ++number) {
    devices[number].number = number;
    devices[number].prepare();
  }
  std::vector<std::thread> threads;
  for (Device &device : devices) threads.emplace_back(on_one, &device, rounds);
  for (std::thread &thread : threads) thread.join();
  on_both(0, rounds);  // one thread that switches
  threads.clear();
  for (int first = 0; first < 4; ++first) threads.emplace_back(on_both, first, rounds);
  for (std::thread &thread : threads) thread.join();
  for (Device &device : devices) device.finish();
  std::printf("{\"devices\": {");
  static const char *names[] = {"churn", "visit"};
  for (int kernel = 0; kernel < 2; ++kernel)
    std::printf("%s\"%s\": [[%llu, %llu], [%llu, %llu]]", kernel ? ", " : "", names[kernel],
                devices[0].threads[kernel], devices[0].blocks[kernel], devices[1].threads[kernel],
                devices[1].blocks[kernel]);
  std::printf("}}\n");
  return report.finish();
}
