// Many short launches of kernels without PTX: streams, replayed graphs, contexts, devices.
//
//     stress [ROUNDS]
//
// 20 launches a round and stream; every buffer's contents go into the digest at the end.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <vector>

#include "report.hpp"

#define CHECK(call)                                                               \
  do {                                                                            \
    cudaError_t error = (call);                                                   \
    if (error != cudaSuccess) {                                                   \
      std::fprintf(stderr, "stress: %s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                               \
    }                                                                             \
  } while (0)

static Report report;
static const unsigned kCount = 1 << 15;
static const int kStreams = 4, kNodes = 10;

// Lanes leave at four places; what they wrote last is still on its way.
extern "C" __global__ void churn(unsigned *data, unsigned n, unsigned seed) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned value = data[i] * 1664525u + seed;
  if ((value >> 13) % 5 == 1) {
    data[i] = value ^ 0x5a5a;
    return;
  }
  for (unsigned k = 0; k < (value & 7); ++k) {
    value = value * 31 + k;
    if (value % 11 == 3) {
      data[i] = value;
      return;
    }
  }
  data[i] = value + 1;
}

// Counters and bounds are uniform registers; in every turn some lanes leave.
extern "C" __global__ void loops(unsigned *data, unsigned n, unsigned rows) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned sum = data[i];
  for (unsigned row = 0; row < rows; ++row) {
    sum += row * (blockIdx.x + 3) + gridDim.x;
    if (i % (rows + 1) == row) {
      data[i] = sum;
      return;
    }
  }
  data[i] = ~sum;
}

// Half of each warp leaves between two barriers.
extern "C" __global__ void halves(unsigned *data, unsigned n) {
  extern __shared__ unsigned tile[];
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? data[i] : i;
  __syncthreads();
  unsigned other = tile[blockDim.x - 1 - threadIdx.x];
  if (threadIdx.x % 2) return;
  __syncthreads();
  tile[threadIdx.x] = other;
  __syncthreads();
  if (i < n) data[i] = tile[threadIdx.x] + (threadIdx.x ? tile[threadIdx.x - threadIdx.x % 4] : 7);
}

// Ends in a reduction of floating-point numbers, all of them whole.
extern "C" __global__ void sums(float *total, const unsigned *data, unsigned n) {
  unsigned sum = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += data[i] & 3;
  atomicAdd(total + threadIdx.x % 8, static_cast<float>(sum));
}

extern "C" __global__ void tiny(unsigned *data) { atomicXor(data, threadIdx.x + 1); }

struct Stream {
  cudaStream_t stream;
  unsigned *data;
  float *total;
  cudaGraphExec_t graph = nullptr;
};

static void launch(const Stream &s, unsigned turn, bool counted) {
  static const unsigned blocks[] = {1, 7, 31, 32, 33, 64, 95, 128, 255, 257, 512, 1000};
  unsigned block = blocks[turn % 12], grid = 1 + turn * 7 % 40, n = grid * block * 7 / 8;
  switch (turn % 5) {
    case 0:
      churn<<<grid, block, 0, s.stream>>>(s.data, n, turn % 97);
      break;
    case 1:
      loops<<<grid, block, 0, s.stream>>>(s.data, n, 3 + turn % 30);
      break;
    case 2:
      halves<<<grid, block, block * sizeof(unsigned), s.stream>>>(s.data, n);
      break;
    case 3:
      sums<<<grid, block, 0, s.stream>>>(s.total, s.data, 2000);
      break;
    default:
      tiny<<<grid, block, 0, s.stream>>>(s.data);
  }
  CHECK(cudaGetLastError());
  static const char *names[] = {"churn", "loops", "halves", "sums", "tiny"};
  if (counted) report.launched(names[turn % 5], {grid}, {block});
}

static void capture(Stream *s) {
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
  for (int node = 0; node < kNodes; ++node) launch(*s, 100 + node, false);
  CHECK(cudaStreamEndCapture(s->stream, &graph));
  CHECK(cudaGraphInstantiate(&s->graph, graph, 0));
  CHECK(cudaGraphDestroy(graph));
}

static void replay(const Stream &s) {
  CHECK(cudaGraphLaunch(s.graph, s.stream));
  static const unsigned blocks[] = {1, 7, 31, 32, 33, 64, 95, 128, 255, 257, 512, 1000};
  static const char *names[] = {"churn", "loops", "halves", "sums", "tiny"};
  for (int node = 0; node < kNodes; ++node) {
    unsigned turn = 100 + node;
    report.launched(names[turn % 5], {1 + turn * 7 % 40}, {blocks[turn % 12]});
  }
}

// Everything in the current context.
static void work(int rounds) {
  std::vector<Stream> streams(kStreams);
  std::vector<unsigned> numbers(kCount + 1024 * 8);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<unsigned>(i * 2654435761u);
  for (Stream &s : streams) {
    CHECK(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&s.data, numbers.size() * sizeof(unsigned)));
    CHECK(cudaMalloc(&s.total, 8 * sizeof(float)));
    CHECK(cudaMemcpy(s.data, numbers.data(), numbers.size() * sizeof(unsigned), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(s.total, 0, 8 * sizeof(float)));
  }
  for (Stream &s : streams)
    for (int turn = 0; turn < 5; ++turn) launch(s, turn, true);  // loaded before anything is captured
  for (Stream &s : streams) capture(&s);
  for (int round = 0; round < rounds; ++round) {
    for (int turn = 0; turn < 20; ++turn)
      for (Stream &s : streams) launch(s, round * 20 + turn, true);
    if (round % 10 == 0)
      for (Stream &s : streams) {
        replay(s);
        CHECK(cudaMemsetAsync(s.total, 0, 8 * sizeof(float), s.stream));  // so that sums stay exact
      }
  }
  CHECK(cudaDeviceSynchronize());
  for (Stream &s : streams) {
    CHECK(cudaMemcpy(numbers.data(), s.data, numbers.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    report.result(numbers.data(), numbers.size() * sizeof(unsigned));
    float totals[8];
    CHECK(cudaMemcpy(totals, s.total, sizeof totals, cudaMemcpyDeviceToHost));
    report.result(totals, sizeof totals);
    CHECK(cudaGraphExecDestroy(s.graph));
    CHECK(cudaFree(s.data));
    CHECK(cudaFree(s.total));
    CHECK(cudaStreamDestroy(s.stream));
  }
}

template <typename Function>
static Function driver(const char *name, unsigned version) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result;
  CHECK(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result));
  return reinterpret_cast<Function>(found);
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 300, devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  for (int device = 0; device < devices; ++device) {
    CHECK(cudaSetDevice(device));
    work(rounds);
    // A second context of the same device, in which everything is loaded once more.
    CUcontext context;
    auto create = driver<CUresult (*)(CUcontext *, unsigned, CUdevice)>("cuCtxCreate", 3020);
    auto set = driver<CUresult (*)(CUcontext)>("cuCtxSetCurrent", 4000);
    auto destroy = driver<CUresult (*)(CUcontext)>("cuCtxDestroy", 4000);
    CUcontext primary;
    auto current = driver<CUresult (*)(CUcontext *)>("cuCtxGetCurrent", 4000);
    report.expect(current(&primary) == CUDA_SUCCESS, "cuCtxGetCurrent");
    report.expect(create(&context, 0, device) == CUDA_SUCCESS, "cuCtxCreate");
    work(rounds / 4);
    report.expect(set(primary) == CUDA_SUCCESS, "cuCtxSetCurrent");
    report.expect(destroy(context) == CUDA_SUCCESS, "cuCtxDestroy");
  }
  return report.finish();
}
