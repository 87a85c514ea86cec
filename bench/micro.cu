// A vector addition under one small probe at a time, in the sizes of bpftime's micro-benchmark.
// bench/launcher.c launches them.

#define KERNEL(name)                                                                               \
  extern "C" __global__ void name(const float *a, const float *b, float *c, int n) {               \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                                 \
    if (i < n) c[i] = a[i] + b[i];                                                                 \
  }
#define KERNELS(X)                                                                                 \
  X(baseline) X(control) X(empty) X(entry) X(exit_only) X(both) X(ring_output) X(globaltimer)      \
  X(array_update) X(array_lookup) X(hash_update) X(hash_lookup) X(hash_delete) X(per_thread_lookup) \
  X(gpu_array_update) X(gpu_array_lookup) X(shared_array_update) X(shared_array_lookup) X(memtrace)
KERNELS(KERNEL)
