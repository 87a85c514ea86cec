// What ring output costs: kernels that do nothing, to be probed, and kernels that store the same
// bytes to mapped host memory themselves. bench/launcher.c launches them.

__device__ unsigned thread_id() { return blockIdx.x * blockDim.x + threadIdx.x; }

template <unsigned kBytes>
__device__ void put(char *host, unsigned number) {
  uint4 *at = reinterpret_cast<uint4 *>(host + size_t{number} * kBytes);
#pragma unroll
  for (unsigned i = 0; i < kBytes / 16; ++i) at[i] = uint4{number, number, number, number};
}

#define IDLE(name) extern "C" __global__ void name(char *host) { if (!host) __trap(); }
#define THREAD(bytes) \
  IDLE(ring_thread_##bytes) \
  extern "C" __global__ void native_thread_##bytes(char *host) { put<bytes>(host, thread_id()); }
#define WARP(bytes) \
  IDLE(ring_warp_##bytes) \
  extern "C" __global__ void native_warp_##bytes(char *host) { \
    if (threadIdx.x % 32 == 0) put<bytes>(host, thread_id() / 32); \
  }
IDLE(idle_thread) IDLE(idle_warp)
THREAD(16) THREAD(32) THREAD(64) WARP(16) WARP(32) WARP(64)

// The link itself: neighbouring threads store neighbouring 16 bytes.
extern "C" __global__ void link_store(char *host) { put<16>(host, thread_id()); }
