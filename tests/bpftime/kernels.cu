// Kernels of the shapes that bpftime's examples probe; ours, with the names that their attach points
// have.  kernels.ptx is made from this by tests/bpftime/build.py.

__device__ int counter = 233;

__global__ void vectorAdd(const float *a, const float *b, float *c) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  c[i] = a[i] + b[i];
}

__global__ void vectorAdd(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

// Never probed: the variable must be the one that probed kernels of this module see, too.
__global__ void countUp() { counter += 1; }

// 3-D blocks and grids, and threads that leave early: bpftime's host calls deadlock here.
__global__ void ragged(float *out, int n) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
      z = blockIdx.z * blockDim.z + threadIdx.z;
  int width = gridDim.x * blockDim.x, height = gridDim.y * blockDim.y;
  int i = (z * height + y) * width + x;
  if (i % 3 == 0) return;
  if (i < n) out[i] = i;
}

namespace tiles {
template <int M, int N, int K>
struct Shape {};
template <typename Element, typename Tile, bool Split>
struct Arguments {
  const Element *a, *b;
  Element *c;
  int m, n, k;
};

// C = A B, a tile of C for each block; the parameter is one structure, as in CUTLASS.
template <typename Element, int M, int N, int K, bool Split>
__global__ void simtGemm(Arguments<Element, Shape<M, N, K>, Split> arguments) {
  __shared__ Element as[M][K], bs[K][N];
  int row = blockIdx.y * M + threadIdx.y, column = blockIdx.x * N + threadIdx.x;
  Element sum = 0;
  for (int start = 0; start < arguments.k; start += K) {
    int across = start + threadIdx.x, down = start + threadIdx.y;
    as[threadIdx.y][threadIdx.x] =
        row < arguments.m && across < arguments.k ? arguments.a[row * arguments.k + across] : 0;
    bs[threadIdx.y][threadIdx.x] =
        down < arguments.k && column < arguments.n ? arguments.b[down * arguments.n + column] : 0;
    __syncthreads();
    for (int i = 0; i < K; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
    __syncthreads();
  }
  if (row < arguments.m && column < arguments.n) arguments.c[row * arguments.n + column] = sum;
}
template __global__ void simtGemm<float, 16, 16, 16, false>(
    Arguments<float, Shape<16, 16, 16>, false>);
}  // namespace tiles

namespace vectors {
// The squared length of each row; a block reads rows four elements at a time.
template <typename T, typename TVec, int RowTile, bool Squared>
__global__ void l2NormRowMajor(const TVec *rows, T *norms, int width) {
  __shared__ T partial[RowTile][32];
  for (int r = 0; r < RowTile; r++) {
    const TVec *row = rows + (blockIdx.x * RowTile + r) * width;
    T sum = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      TVec v = row[i];
      sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    partial[r][threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x < RowTile) {
    T sum = 0;
    for (int i = 0; i < 32; i++) sum += partial[threadIdx.x][i];
    norms[blockIdx.x * RowTile + threadIdx.x] = Squared ? sum : sqrtf(sum);
  }
}
template __global__ void l2NormRowMajor<float, float4, 8, true>(const float4 *, float *, int);
}  // namespace vectors

// Each row divided by the root of its mean square.
template <int Width, bool Scaled, bool Shifted>
__global__ void rms_norm_f32(const float *x, const float *weight, float *out, int columns,
                             float epsilon) {
  __shared__ float partial[32];
  const float *row = x + blockIdx.x * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i] * row[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < (blockDim.x + 31) / 32; i++) sum += partial[i];
  float factor = rsqrtf(sum / columns + epsilon);
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    out[blockIdx.x * columns + i] =
        factor * row[i] * (Scaled ? weight[i] : 1.0f) + (Shifted ? 1.0f : 0.0f);
}
template __global__ void rms_norm_f32<1024, true, false>(const float *, const float *, float *,
                                                         int, float);

namespace sorting {
template <typename T>
struct Less {
  __device__ bool operator()(T one, T other) const { return one < other; }
};
// A bitonic network over 2 * Threads pairs in shared memory.
template <int Threads, typename K, typename V, typename Order>
__global__ void bitonicSortKVInPlace(K *keys, V *values, Order order) {
  __shared__ K k[2 * Threads];
  __shared__ V v[2 * Threads];
  int base = blockIdx.x * 2 * Threads;
  for (int i = threadIdx.x; i < 2 * Threads; i += Threads) k[i] = keys[base + i], v[i] = values[base + i];
  for (int size = 2; size <= 2 * Threads; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      int at = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
      bool up = ((2 * threadIdx.x) & size) == 0;
      if (order(k[at + stride], k[at]) == up) {
        K key = k[at];
        k[at] = k[at + stride], k[at + stride] = key;
        V value = v[at];
        v[at] = v[at + stride], v[at + stride] = value;
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * Threads; i += Threads) keys[base + i] = k[i], values[base + i] = v[i];
}
template __global__ void bitonicSortKVInPlace<32, float, int, Less<float>>(float *, int *,
                                                                         Less<float>);
}  // namespace sorting

// bpftime's trace stub: an entry probe takes the place of its calls.
extern "C" __device__ __noinline__ void __bpftime_cuda__kernel_trace() { asm volatile(""); }

__global__ void tracedLoop(float *out, int rounds) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (int round = 0; round < rounds; round++) {
    sum += round;
    if (i % 2 == 0) __bpftime_cuda__kernel_trace();
  }
  out[i] = sum;
}
