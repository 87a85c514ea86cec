// What map operations cost: kernels that do nothing, to be probed, and kernels that do the same
// atomics or stores themselves, without a map. bench/launcher.c launches them.

typedef unsigned long long u64;

// As bench/probes/keys.h chooses them.
__device__ unsigned mixed(unsigned id) {
  id *= 2654435761u;
  id ^= id >> 15;
  return id * 2246822519u;
}
__device__ unsigned thread_id() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ unsigned uniform() { return mixed(thread_id()) >> 16; }
__device__ unsigned zipf() {
  unsigned h = mixed(thread_id()), e = h >> 28;
  return 1u << e | (h >> 8 & ((1u << e) - 1));
}

#define IDLE(name) \
  extern "C" __global__ void name(u64 *table) { if (!table) __trap(); }
#define NATIVE(name, statement) \
  extern "C" __global__ void name(u64 *table) { if (!table) __trap(); statement; }

__device__ unsigned sm() {
  unsigned number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}
__device__ void warp_add(u64 *at) {
  unsigned lanes = __activemask();
  if ((threadIdx.x & 31) == __ffs(lanes) - 1) atomicAdd(at, (u64)__popc(lanes));
}

IDLE(idle)
IDLE(array_one) IDLE(array_spread) IDLE(sm_thread) IDLE(sm_warp)
IDLE(hash_add_uniform) IDLE(hash_add_zipf) IDLE(hash_add_million)
IDLE(hash_put_uniform) IDLE(hash_put_zipf)
IDLE(pinned_add_uniform) IDLE(pinned_put_uniform) IDLE(pinned_put_zipf)
NATIVE(native_array_one, atomicAdd(table, 1ull))
NATIVE(native_array_spread, atomicAdd(table + (thread_id() & 1023), 1ull))
NATIVE(native_sm_thread, atomicAdd(table + 16 * sm(), 1ull))
NATIVE(native_sm_warp, warp_add(table + 16 * sm()))
NATIVE(native_hash_add_uniform, atomicAdd(table + 4 * uniform(), 1ull))
NATIVE(native_hash_add_zipf, atomicAdd(table + 4 * zipf(), 1ull))
NATIVE(native_hash_add_million, atomicAdd(table + 4 * (mixed(thread_id()) >> 12), 1ull))
NATIVE(native_hash_put_uniform, table[4 * uniform()] = thread_id())
NATIVE(native_hash_put_zipf, table[4 * zipf()] = thread_id())
