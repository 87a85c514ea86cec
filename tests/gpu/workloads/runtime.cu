// The runtime-API workload: every launch shape that a probe has to count exactly.
//
// Built twice, with the static and with the shared cudart.  It ends with launches that nobody waits
// for: main returns while they may still run.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "report.hpp"

#define CHECK(call)                                                                   \
  do {                                                                                \
    cudaError_t error = (call);                                                       \
    if (error != cudaSuccess) {                                                       \
      std::fprintf(stderr, "runtime: %s: %s\n", #call, cudaGetErrorString(error));    \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (0)

static Report report;

static Extent extent(dim3 d) { return {d.x, d.y, d.z}; }

__device__ unsigned mix(unsigned value, unsigned salt) {
  value = (value ^ salt) * 2654435761u;
  return value ^ (value >> 15);
}

__device__ unsigned linear_thread() {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  return block * (blockDim.x * blockDim.y * blockDim.z) + thread;
}

// ---------------------------------------------------------------------------------- kernels

extern "C" __global__ void shape(unsigned *out, unsigned salt) {
  unsigned i = linear_thread();
  out[i] += mix(i, salt);
}

template <typename T, int N>
__global__ void templated(T *out) {
  unsigned i = linear_thread();
  out[i] += static_cast<T>(N * i);
}
template __global__ void templated<unsigned, 3>(unsigned *);

// Lanes leave at five places; some of them before the barriers of those that stay.
extern "C" __global__ void divergent(unsigned *out, int n) {
  __shared__ unsigned seen[1024];
  unsigned i = linear_thread(), lane = threadIdx.x % 32;
  seen[threadIdx.x] = 0;
  if (static_cast<int>(i) >= n) return;
  if (lane % 7 == 3) {
    out[i] = 1;
    return;
  }
  if (lane == 5) {
    out[i] = 2;
    asm volatile("exit;");
  }
  unsigned turns = 0;
  for (unsigned value = i + 1; value > 1; value = value % 2 ? value - 1 : value / 2) {
    if (++turns == 12) {
      out[i] = 3;
      return;
    }
  }
  seen[threadIdx.x] = turns + 1;
  __syncthreads();
  unsigned neighbour = seen[(threadIdx.x + 1) % blockDim.x];
  if (lane % 2 == 0) {
    out[i] = 4 + (neighbour != 0);
    return;
  }
  __syncthreads();
  out[i] = 16 + turns;
}

extern "C" __global__ void on_stream(unsigned *out, unsigned add) { out[linear_thread()] += add; }

extern "C" __global__ void on_thread(unsigned *out, unsigned add) { out[linear_thread()] += add; }

extern "C" __global__ void in_graph(unsigned *out, unsigned add) { out[linear_thread()] += add; }

// A grid-wide barrier: wrong results or a hang if the blocks are not all resident.
extern "C" __global__ void cooperative(unsigned *data, unsigned *total) {
  cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  unsigned i = linear_thread();
  data[i] = i + 1;
  grid.sync();
  unsigned other = data[(i + 97) % static_cast<unsigned>(grid.size())];
  atomicAdd(total, other);
}

__device__ unsigned long long visits;
extern "C" __global__ void no_parameters() { atomicAdd(&visits, 1ull); }

struct Plain {
  int first;
  short second;
  char third[13];
  double fourth;
};
struct __align__(16) Aligned {
  float values[4];
  unsigned char tag;
};
struct __align__(64) WideAligned {
  unsigned long long value;
};
extern "C" __global__ void by_value(char small, Plain plain, Aligned aligned, short gap,
                                    WideAligned wide, unsigned long long *out) {
  unsigned i = linear_thread();
  out[i] = static_cast<unsigned long long>(plain.first + plain.second + plain.third[12] + small + gap) +
           static_cast<unsigned long long>(plain.fourth) +
           static_cast<unsigned long long>(aligned.values[3]) + aligned.tag + wide.value + i;
}

// Two kernels share writable variables: a probe on one of them must not split what they see.
__device__ unsigned shared_counter;
static __device__ unsigned shared_static[256];
__constant__ unsigned factors[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ const unsigned table[4] = {11, 22, 33, 44};
extern "C" __global__ void writer_probed(unsigned *out) {
  unsigned i = linear_thread();
  atomicAdd(&shared_counter, 1u);
  atomicAdd(&shared_static[i % 256], factors[i % 8]);
  out[i] += shared_static[i % 256] > 0 ? table[i % 4] : 0;
}
extern "C" __global__ void writer_plain(unsigned *out) {
  unsigned i = linear_thread();
  atomicAdd(&shared_counter, 1000u);
  atomicAdd(&shared_static[i % 256], 100 * factors[i % 8]);
  out[i] += table[i % 4];
}
extern "C" __global__ void read_shared(unsigned *out) {
  unsigned i = linear_thread();
  out[i] = i < 256 ? shared_static[i] : shared_counter;
}

extern "C" __global__ void dynamic_shared(unsigned *out, unsigned words) {
  extern __shared__ unsigned memory[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) memory[i] = i * 3;
  __syncthreads();
  out[linear_thread()] = memory[(threadIdx.x * 37) % words];
}

extern "C" __global__ void extended(unsigned *out) { out[linear_thread()] += 9; }

extern "C" __global__ void unawaited(unsigned *out) { out[linear_thread()] += 1; }

// ---------------------------------------------------------------------------------- host side

template <typename T>
struct Buffer {
  T *address = nullptr;
  size_t count;
  explicit Buffer(size_t count) : count(count) {
    CHECK(cudaMalloc(&address, count * sizeof(T)));
    CHECK(cudaMemset(address, 0, count * sizeof(T)));
  }
  std::vector<T> read() const {
    std::vector<T> values(count);
    CHECK(cudaMemcpy(values.data(), address, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  void to_report() const {
    std::vector<T> values = read();
    report.result(values.data(), values.size() * sizeof(T));
  }
};

static void shapes() {
  Buffer<unsigned> out(1 << 18);
  const dim3 grids[] = {dim3(1), dim3(7), dim3(13, 3), dim3(3, 2, 5)};
  const dim3 blocks[] = {dim3(1),     dim3(31),       dim3(33),        dim3(96),
                         dim3(257),   dim3(1024),     dim3(16, 9),     dim3(5, 7, 3),
                         dim3(32, 4), dim3(1, 33, 2), dim3(8, 2, 64)};
  unsigned salt = 1;
  for (dim3 grid : grids)
    for (dim3 block : blocks)
      for (int i = 0; i < 20; ++i) {
        shape<<<grid, block>>>(out.address, salt++);
        report.launched("shape", extent(grid), extent(block));
      }
  CHECK(cudaGetLastError());
  for (int i = 0; i < 50; ++i) {
    templated<unsigned, 3><<<11, 100>>>(out.address);
    report.launched("_Z9templatedIjLi3EEvPT_", {11}, {100});
  }
  CHECK(cudaGetLastError());
  out.to_report();
}

static void divergence() {
  Buffer<unsigned> out(64 * 1024);
  for (unsigned block : {32u, 33u, 96u, 257u, 1024u})
    for (int i = 0; i < 20; ++i) {
      divergent<<<64, block>>>(out.address, static_cast<int>(63 * block + block / 2));
      report.launched("divergent", {64}, {block});
    }
  CHECK(cudaGetLastError());
  // Reading a neighbour that left races with nothing: it never writes after its first barrier.
  out.to_report();
}

static void streams() {
  constexpr int kStreams = 4, kLaunches = 400;
  cudaStream_t stream[kStreams];
  std::vector<Buffer<unsigned>> out;
  for (int s = 0; s < kStreams; ++s) {
    CHECK(cudaStreamCreateWithFlags(&stream[s], s % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
    out.emplace_back(64 * 96);
  }
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < kLaunches; ++i)
    for (int s = 0; s < kStreams; ++s) {
      on_stream<<<64, 96, 0, stream[s]>>>(out[s].address, static_cast<unsigned>(s + 1));
      report.launched("on_stream", {64}, {96});
    }
  CHECK(cudaGetLastError());
  for (int s = 0; s < kStreams; ++s) {
    CHECK(cudaStreamSynchronize(stream[s]));
    CHECK(cudaStreamDestroy(stream[s]));
    out[s].to_report();
  }
}

static void threads() {
  constexpr int kThreads = 6, kLaunches = 300;
  std::vector<Buffer<unsigned>> out;
  for (int t = 0; t < kThreads; ++t) out.emplace_back(33 * 65);
  CHECK(cudaDeviceSynchronize());
  std::vector<std::thread> running;
  for (int t = 0; t < kThreads; ++t)
    running.emplace_back([t, &out] {
      cudaStream_t stream;
      CHECK(cudaStreamCreate(&stream));
      for (int i = 0; i < kLaunches; ++i) {
        on_thread<<<33, 65, 0, stream>>>(out[t].address, static_cast<unsigned>(t + 1));
        report.launched("on_thread", {33}, {65});
      }
      CHECK(cudaGetLastError());
      CHECK(cudaStreamSynchronize(stream));
      CHECK(cudaStreamDestroy(stream));
    });
  for (std::thread &thread : running) thread.join();
  for (auto &buffer : out) buffer.to_report();
}

// The kernel's first launch is inside the capture, in the mode that a stray allocation would break.
static void graphs() {
  constexpr int kNodes = 5, kReplays = 80;
  Buffer<unsigned> out(17 * 129);
  CHECK(cudaDeviceSynchronize());
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < kNodes; ++i)
    in_graph<<<17, 129, 0, stream>>>(out.address, static_cast<unsigned>(i + 1));
  CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable;
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < kReplays; ++i) CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  report.launched("in_graph", {17}, {129}, kNodes * kReplays);
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  out.to_report();
}

static void cooperation() {
  constexpr unsigned kBlocks = 40, kThreads = 128;
  Buffer<unsigned> data(kBlocks * kThreads), total(1);
  void *arguments[] = {&data.address, &total.address};
  for (int i = 0; i < 30; ++i) {
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(cooperative), dim3(kBlocks),
                                      dim3(kThreads), arguments, 0, nullptr));
    report.launched("cooperative", {kBlocks}, {kThreads});
  }
  total.to_report();
  data.to_report();
}

static void parameters() {
  for (int i = 0; i < 200; ++i) {
    no_parameters<<<3, 50>>>();
    report.launched("no_parameters", {3}, {50});
  }
  CHECK(cudaGetLastError());
  unsigned long long count = 0;
  CHECK(cudaMemcpyFromSymbol(&count, visits, sizeof count));
  report.expect(count == 200 * 150, "no_parameters: visits");
  report.result(&count, sizeof count);

  Buffer<unsigned long long> out(4 * 64);
  Plain plain{1000, 20, {}, 3e6};
  plain.third[12] = 3;
  Aligned aligned{{1, 2, 3, 40000}, 5};
  WideAligned wide{7000000000ull};
  for (int i = 0; i < 60; ++i) {
    by_value<<<4, 64>>>(static_cast<char>(i), plain, aligned, static_cast<short>(-i), wide,
                        out.address);
    report.launched("by_value", {4}, {64});
  }
  CHECK(cudaGetLastError());
  std::vector<unsigned long long> values = out.read();
  for (size_t i = 0; i < values.size(); ++i)
    report.expect(values[i] == 1000 + 20 + 3 + 3000000 + 40000 + 5 + 7000000000ull + i, "by_value");
  report.result(values.data(), values.size() * sizeof values[0]);
}

static void variables() {
  constexpr unsigned kBlocks = 8, kThreads = 64, kRounds = 100;
  Buffer<unsigned> probed(kBlocks * kThreads), plain(kBlocks * kThreads), seen(257);
  const unsigned changed[2] = {70, 80};
  CHECK(cudaMemcpyToSymbol(factors, changed, sizeof changed, 3 * sizeof(unsigned)));
  for (unsigned i = 0; i < kRounds; ++i) {
    writer_probed<<<kBlocks, kThreads>>>(probed.address);
    writer_plain<<<kBlocks, kThreads>>>(plain.address);
    report.launched("writer_probed", {kBlocks}, {kThreads});
    report.launched("writer_plain", {kBlocks}, {kThreads});
  }
  read_shared<<<1, 257>>>(seen.address);
  report.launched("read_shared", {1}, {257});
  CHECK(cudaGetLastError());
  unsigned counter = 0;
  CHECK(cudaMemcpyFromSymbol(&counter, shared_counter, sizeof counter));
  report.expect(counter == kRounds * kBlocks * kThreads * 1001, "shared_counter from the host");
  std::vector<unsigned> values = seen.read();
  report.expect(values[256] == counter, "shared_counter from a kernel");
  report.result(values.data(), values.size() * sizeof values[0]);
  probed.to_report();
  plain.to_report();

  // The host writes a variable after its twin exists.
  counter = 5;
  CHECK(cudaMemcpyToSymbol(shared_counter, &counter, sizeof counter));
  writer_probed<<<1, 32>>>(probed.address);
  report.launched("writer_probed", {1}, {32});
  CHECK(cudaMemcpyFromSymbol(&counter, shared_counter, sizeof counter));
  report.expect(counter == 5 + 32, "shared_counter written by the host");
}

static void attributes() {
  constexpr unsigned kBytes = 80 * 1024;  // more than a kernel may have without asking
  Buffer<unsigned> out(6 * 128);
  CHECK(cudaFuncSetAttribute(dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  for (int i = 0; i < 20; ++i) {
    dynamic_shared<<<6, 128, kBytes>>>(out.address, kBytes / 4);
    report.launched("dynamic_shared", {6}, {128});
  }
  CHECK(cudaGetLastError());
  out.to_report();

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(6);
  config.blockDim = dim3(128);
  cudaLaunchAttribute attribute[1] = {};
#ifdef WITH_CLUSTERS
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = 2;
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
#else
  attribute[0].id = cudaLaunchAttributePriority;
  attribute[0].val.priority = 0;
#endif
  config.attrs = attribute;
  for (int i = 0; i < 20; ++i) {
    config.numAttrs = i % 2;
    CHECK(cudaLaunchKernelEx(&config, extended, out.address));
    report.launched("extended", {6}, {128});
  }
  out.to_report();
}

// Nobody waits for these; the buffer is never freed.
static void leave_running() {
  Buffer<unsigned> out(200 * 256);
  for (int i = 0; i < 500; ++i) {
    unawaited<<<200, 256>>>(out.address);
    report.launched("unawaited", {200}, {256});
  }
  CHECK(cudaGetLastError());
}

int main() {
  shapes();
  divergence();
  streams();
  threads();
  graphs();
  cooperation();
  parameters();
  variables();
  attributes();
  leave_running();
  return report.finish();
}
