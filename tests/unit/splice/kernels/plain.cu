// Everyday kernels: element-wise, shared memory with barriers, shuffles, atomics, early exits.
extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n) {
  __shared__ float left[16][16], right[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < n / 16; t++) {
    left[threadIdx.y][threadIdx.x] = a[row * n + t * 16 + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(t * 16 + threadIdx.y) * n + column];
    __syncthreads();
    for (int k = 0; k < 16; k++) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

extern "C" __global__ void reduce(const int *in, int *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int value = i < n ? in[i] : 0;
  for (int step = 16; step; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
  if (threadIdx.x % 32 == 0) atomicAdd(out, value);
}

extern "C" __global__ void histogram(const unsigned char *in, unsigned *bins, int n) {
  extern __shared__ unsigned local_bins[];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local_bins[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&local_bins[in[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local_bins[i]);
}

extern "C" __global__ void early_exits(int *data, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  if (data[i] < 0) { data[i] = 0; return; }
  for (int k = 0; k < data[i]; k++)
    if (k * k == data[i]) { data[i] = k; asm volatile("exit;"); }
  if (i == 7) __trap();
  data[i] = -1;
}

extern "C" __global__ void no_parameters() {}

extern "C" __global__ void __launch_bounds__(256, 2) switch_table(int *o, int s) {
  switch (s) {
    case 0: o[0] = 5; break;
    case 1: o[3] = o[2] * 2; break;
    case 2: o[2] = 1; break;
    case 3: o[9] = o[1] / 3; break;
    case 4: o[7] = 8; break;
    case 5: o[1] = __shfl_xor_sync(~0u, o[2], 1); break;
    case 6: o[3] += 7; break;
    case 7: return;
  }
}

extern "C" __global__ void inline_scopes(int *o) {
  asm volatile("{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.gt.u32 p, t, 8;\n"
               "{ .reg .b32 u; add.u32 u, t, 1; @p exit; @!p st.global.u32 [%0], u; }\n"
               "}" ::"l"(o) : "memory");
  o[threadIdx.x] = 1;
}

struct alignas(32) Aligned { double x[6]; char c; };
struct Odd { char c[3]; short s; char last[6]; };

extern "C" __global__ void by_value(Odd odd, char c, Aligned big, float *o, short s, double d) {
  o[threadIdx.x] = big.x[s] + odd.c[s] + odd.last[c] + d;
}

template <typename T, int N> __global__ void scale(T *data, T factor) {
  for (int i = 0; i < N; i++) data[threadIdx.x * N + i] *= factor;
}
template __global__ void scale<float, 4>(float *, float);
template __global__ void scale<double, 3>(double *, double);
