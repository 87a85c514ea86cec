// Kernels of the driver-API workload; built to PTX text: nvcc -ptx -arch=compute_80.
struct __align__(16) Quad {
  unsigned values[4];
};

// Launched in one and in three dimensions: every thread has a word of its own.
extern "C" __global__ void add(unsigned *out, unsigned n, unsigned value) {
  unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  if (i < n) out[i] += value;
}

extern "C" __global__ void packed(unsigned char tag, unsigned *out, Quad quad, unsigned short add) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] += quad.values[i % 4] + tag + add;
}

__device__ unsigned counter;
__device__ unsigned *target;
extern "C" __global__ void counted() { atomicAdd(&counter, 1u); }
extern "C" __global__ void through_pointer() {
  target[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

extern "C" __global__ void by_library(unsigned *out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] += 2;
}

extern "C" __global__ void noded(unsigned *out, unsigned value) {
  out[blockIdx.x * blockDim.x + threadIdx.x] += value;
}

// As machine code it cannot be probed.
__constant__ unsigned steps[4] = {5, 6, 7, 8};
extern "C" __global__ void stepped(unsigned *out, unsigned value) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] += value + steps[(i + value) % 4];
}

extern "C" __global__ void captured(unsigned *out, unsigned value) {
  out[blockIdx.x * blockDim.x + threadIdx.x] += value;
}

extern "C" __global__ void large_shared(unsigned *out) {
  extern __shared__ unsigned memory[];
  memory[threadIdx.x * 32] = threadIdx.x;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = memory[((threadIdx.x + 1) % blockDim.x) * 32];
}
