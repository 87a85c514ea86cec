// What ring output costs: kernels that do nothing, to be probed, and kernels that store the same
// bytes to mapped host memory themselves. bench/launcher.c launches them.
//
// The same bytes in the same kind of places: each SM has a region, a warp takes the next place in
// it with one addition, stores its records and then 16 bytes before them, as a ring's groups lie.

constexpr unsigned kRegions = 144;  // SMs
constexpr unsigned kHeader = 16;

__device__ unsigned long long heads[kRegions * 16];  // 128 bytes apart

__device__ unsigned thread_id() { return blockIdx.x * blockDim.x + threadIdx.x; }

__device__ char *place(char *host, unsigned region, unsigned bytes) {
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  sm = sm < kRegions ? sm : kRegions - 1;
  const unsigned long long at = atomicAdd(heads + 16 * sm, bytes);
  return host + size_t{sm} * region + (at & (region - 1));
}

template <unsigned kBytes>
__device__ void put(char *to, unsigned number) {
  uint4 *at = reinterpret_cast<uint4 *>(to);
#pragma unroll
  for (unsigned i = 0; i < kBytes / 16; ++i) at[i] = uint4{number, number, number, number};
}

template <unsigned kBytes>
__device__ void records_of_threads(char *host, unsigned region) {
  const unsigned lane = threadIdx.x % 32;
  unsigned long long group = 0;
  if (lane == 0)
    group = reinterpret_cast<unsigned long long>(place(host, region, kHeader + 32 * kBytes));
  char *at = reinterpret_cast<char *>(__shfl_sync(~0u, group, 0));
  put<kBytes>(at + kHeader + lane * kBytes, thread_id());
  __syncwarp();
  if (lane == 0) put<kHeader>(at, thread_id());
}

template <unsigned kBytes>
__device__ void record_of_lane(char *host, unsigned region) {
  char *at = place(host, region, kHeader + kBytes);
  put<kBytes>(at + kHeader, thread_id());
  put<kHeader>(at, thread_id());
}

template <unsigned kBytes>
__device__ void record_of_warp(char *host, unsigned region) {
  if (threadIdx.x % 32 == 0) record_of_lane<kBytes>(host, region);
}

#define IDLE(name) extern "C" __global__ void name(char *host) { if (!host) __trap(); }
#define SAME(kind, bytes, body) \
  IDLE(ring_##kind##_##bytes) \
  extern "C" __global__ void same_##kind##_##bytes(char *host, char *, char *, unsigned region) { \
    body<bytes>(host, region); \
  }
#define THREAD(bytes) SAME(thread, bytes, records_of_threads)
#define WARP(bytes) SAME(warp, bytes, record_of_warp)
IDLE(idle_thread) IDLE(idle_warp) IDLE(idle_alone)
SAME(alone, 16, record_of_lane)
THREAD(16) THREAD(32) THREAD(64) WARP(16) WARP(32) WARP(64)

// The link itself: neighbouring threads store neighbouring 16 bytes.
extern "C" __global__ void link_store(char *host) {
  put<16>(host + size_t{thread_id()} * 16, thread_id());
}
