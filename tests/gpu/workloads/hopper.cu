// Kernels that only sm_90a has, as machine code only: built with -code=sm_90a, without PTX.
//
//     hopper [ROUNDS]
//
// Registers that warps hand to each other (setmaxnreg), kernels that begin before the one before them has ended
// (griddepcontrol), and blocks of a cluster that meet while some of their threads have left.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdlib>
#include <vector>

#include "report.hpp"

#define CHECK(call)                                                                \
  do {                                                                             \
    cudaError_t error = (call);                                                    \
    if (error != cudaSuccess) {                                                    \
      std::fprintf(stderr, "hopper: %s: %s\n", #call, cudaGetErrorString(error));  \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)

static Report report;
constexpr unsigned kGroup = 128, kTile = 128, kBlock = 3 * kGroup;

// One warp group loads with 40 registers, two add up with 232; the loaders leave first, and a consumer's lanes in
// two parts.  More values live at once than a warp has at the start.
extern "C" __global__ void __launch_bounds__(kBlock, 1)
    handed_over(unsigned *out, const unsigned *in, unsigned tiles) {
  __shared__ unsigned tile[2][kTile];
  unsigned group = threadIdx.x / kGroup, thread = threadIdx.x % kGroup;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    for (unsigned t = 0; t < tiles; ++t) {
      asm volatile("bar.sync 1, 384;" ::: "memory");
      tile[t % 2][thread] = in[(blockIdx.x * tiles + t) * kTile + thread];
      asm volatile("bar.sync 2, 384;" ::: "memory");
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  unsigned sums[96];
#pragma unroll
  for (unsigned i = 0; i < 96; ++i) sums[i] = thread + i;
  for (unsigned t = 0; t < tiles; ++t) {
    asm volatile("bar.sync 1, 384;" ::: "memory");
    asm volatile("bar.sync 2, 384;" ::: "memory");
#pragma unroll
    for (unsigned i = 0; i < 96; ++i) sums[i] = sums[i] * 5 + tile[t % 2][(thread + i) % kTile];
  }
  unsigned sum = 0;
#pragma unroll
  for (unsigned i = 0; i < 96; ++i) sum = sum * 31 + sums[i];
  unsigned place = (blockIdx.x * 2 + group - 1) * kGroup + thread;
  if (thread % 3 == 1) {
    out[place] = sum + 1;
    return;
  }
  for (unsigned turn = 0; turn < thread % 7; ++turn) sum = sum * 3 + __popc(__activemask());
  out[place] = sum;
}

// A chain: each begins before the one before it has ended, and waits for what that wrote.
extern "C" __global__ void chained(unsigned *out, const unsigned *in, unsigned step) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned value = i * 2654435761u + step;
  for (unsigned turn = 0; turn < threadIdx.x % 5; ++turn) value = value * 7 + turn;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  unsigned before = in[(i + 33) % (gridDim.x * blockDim.x)];
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x % 32 == step % 32) {
    out[i] = before * 3 + 1;
    return;
  }
  out[i] = before * 5 + value;
}

// Blocks of four read each other's shared memory; some threads leave between the two meetings of those that stay,
// which the hardware then waits for no more: lanes of each warp, and whole warps.
extern "C" __global__ void __cluster_dims__(4, 1, 1) clustered(unsigned *out, unsigned step) {
  __shared__ unsigned mine[256];
  auto cluster = cooperative_groups::this_cluster();
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  mine[threadIdx.x] = i * 13 + step;
  cluster.sync();
  unsigned other = (cluster.block_rank() + 1 + step % 3) % 4;
  unsigned value = *cluster.map_shared_rank(mine + (threadIdx.x + 5) % blockDim.x, other);
  if (threadIdx.x % 32 >= 29 || threadIdx.x / 32 % 4 == 3) {
    out[i] = value + 7;
    return;
  }
  out[i] = value * 3;
  asm volatile("barrier.cluster.arrive;\n barrier.cluster.wait;" ::: "memory");
}

static unsigned *device(size_t count, bool filled) {
  std::vector<unsigned> values(count);
  if (filled)
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<unsigned>(i * 2654435761u >> 7);
  unsigned *pointer;
  CHECK(cudaMalloc(&pointer, count * sizeof(unsigned)));
  CHECK(cudaMemcpy(pointer, values.data(), count * sizeof(unsigned), cudaMemcpyHostToDevice));
  return pointer;
}

static void digest(const unsigned *pointer, size_t count) {
  std::vector<unsigned> values(count);
  CHECK(cudaMemcpy(values.data(), pointer, count * sizeof(unsigned), cudaMemcpyDeviceToHost));
  report.result(values.data(), count * sizeof(unsigned));
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
  constexpr unsigned kGrid = 150, kTiles = 9, kChain = 16;
  unsigned *in = device(kGrid * kTiles * kTile, true), *out = device(kGrid * 2 * kGroup, false);
  unsigned *links[2] = {device(264 * 1024, true), device(264 * 1024, false)};
  unsigned *meetings = device(400 * 256, false);
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  for (int round = 0; round < rounds; ++round) {
    for (unsigned blocks : {1u, 131u, kGrid}) {
      handed_over<<<blocks, kBlock, 0, stream>>>(out, in, kTiles);
      report.launched("handed_over", {blocks}, {kBlock});
    }
    for (unsigned block : {33u, 96u, 256u}) {
      unsigned grid = 7 + (round * 37 + block) % 250;
      cudaLaunchConfig_t config = {};
      config.gridDim = grid;
      config.blockDim = block;
      config.stream = stream;
      config.attrs = &early;
      config.numAttrs = 1;
      for (unsigned step = 0; step < kChain; ++step) {
        CHECK(cudaLaunchKernelEx(&config, chained, links[(step + 1) % 2],
                                 static_cast<const unsigned *>(links[step % 2]), step + round));
        report.launched("chained", {grid}, {block});
      }
    }
    for (unsigned block : {32u, 64u, 256u}) {
      unsigned grid = 4 * (1 + (round * 7 + block) % 100);
      clustered<<<grid, block, 0, stream>>>(meetings, round);
      report.launched("clustered", {grid}, {block});
    }
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    digest(out, kGrid * 2 * kGroup);
    digest(links[0], 264 * 1024);
    digest(meetings, 400 * 256);
  }
  return report.finish();
}
