// Each kernel three times with the same body: _plain and _control are never probed, _probed is.
//
// The three run in turn, so that clocks, caches and neighbours are the same for all; _control against
// _plain says how much of a ratio is noise.  Results are checked before any time is printed.
//
//     kernels [LAUNCHES]     one JSON object on standard output
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#define CHECK(call)                                                                  \
  do {                                                                               \
    cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                      \
      std::fprintf(stderr, "kernels: %s: %s\n", #call, cudaGetErrorString(error));   \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

constexpr int kTile = 16, kWarmUp = 5, kVariants = 3;

__device__ void vecadd_body(const float *a, const float *b, float *sum, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sum[i] = a[i] + b[i];
}

__device__ void matmul_body(const float *a, const float *b, float *c, int n) {
  __shared__ float left[kTile][kTile], right[kTile][kTile];
  int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int tile = 0; tile < n; tile += kTile) {
    left[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

__device__ void reduce_body(const unsigned *values, unsigned long long *total, int n) {
  __shared__ unsigned long long partial[32];
  unsigned long long sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += values[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (threadIdx.x == 0) atomicAdd(total, sum);
}

#define VARIANTS(name, parameters, arguments)                                                      \
  extern "C" __global__ void name##_plain parameters { name##_body arguments; }                   \
  extern "C" __global__ void name##_control parameters { name##_body arguments; }                 \
  extern "C" __global__ void name##_probed parameters { name##_body arguments; }

VARIANTS(vecadd, (const float *a, const float *b, float *c, int n), (a, b, c, n))
VARIANTS(matmul, (const float *a, const float *b, float *c, int n), (a, b, c, n))
VARIANTS(reduce, (const unsigned *values, unsigned long long *total, int n), (values, total, n))

// Set on the device: the inputs are large.
extern "C" __global__ void fill_floats(float *values, int n, int period) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    values[i] = static_cast<float>(i % period);
}
extern "C" __global__ void fill_words(unsigned *values, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    values[i] = static_cast<unsigned>(i) * 2654435761u >> 20;
}

template <typename T>
static T *allocate(size_t count) {
  T *address;
  CHECK(cudaMalloc(&address, count * sizeof(T)));
  CHECK(cudaMemset(address, 0, count * sizeof(T)));
  return address;
}

struct Timed {
  const char *name;
  unsigned blocks, threads;  // of one launch
  double median[kVariants];  // microseconds
  bool right;
};

static double median(std::vector<float> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return 1000.0 * values[values.size() / 2];
}

// Runs the variants in turn; the warm-up is where twins are built.
static void time_variants(Timed &timed, int launches, const std::function<void(int)> &launch) {
  std::vector<float> times[kVariants];
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  for (int i = -kWarmUp; i < launches; ++i)
    for (int variant = 0; variant < kVariants; ++variant) {
      CHECK(cudaEventRecord(start));
      launch(variant);
      CHECK(cudaEventRecord(stop));
      CHECK(cudaEventSynchronize(stop));
      float milliseconds;
      CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
      if (i >= 0) times[variant].push_back(milliseconds);
    }
  CHECK(cudaGetLastError());
  for (int variant = 0; variant < kVariants; ++variant) timed.median[variant] = median(times[variant]);
}

static Timed vecadd(int launches) {
  constexpr int n = 64 << 20, kThreads = 256;
  float *a = allocate<float>(n), *b = allocate<float>(n), *c = allocate<float>(n);
  fill_floats<<<1024, 256>>>(a, n, 1000);
  fill_floats<<<1024, 256>>>(b, n, 777);
  void (*kernels[])(const float *, const float *, float *, int) = {vecadd_plain, vecadd_control,
                                                                   vecadd_probed};
  Timed timed{"vecadd", n / kThreads, kThreads, {}, true};
  time_variants(timed, launches,
                [&](int variant) { kernels[variant]<<<n / kThreads, kThreads>>>(a, b, c, n); });
  std::vector<float> result(n);
  // The last launch was the probed one.
  CHECK(cudaMemcpy(result.data(), c, n * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) timed.right &= result[i] == static_cast<float>(i % 1000 + i % 777);
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  CHECK(cudaFree(c));
  return timed;
}

static Timed matmul(int launches) {
  constexpr int n = 2048;
  float *a = allocate<float>(n * n), *b = allocate<float>(n * n);
  float *c[kVariants];
  for (float *&result : c) result = allocate<float>(n * n);
  fill_floats<<<1024, 256>>>(a, n * n, 7);
  fill_floats<<<1024, 256>>>(b, n * n, 5);
  void (*kernels[])(const float *, const float *, float *, int) = {matmul_plain, matmul_control,
                                                                   matmul_probed};
  const dim3 grid(n / kTile, n / kTile), block(kTile, kTile);
  Timed timed{"matmul", grid.x * grid.y, kTile * kTile, {}, true};
  time_variants(timed, launches,
                [&](int variant) { kernels[variant]<<<grid, block>>>(a, b, c[variant], n); });
  std::vector<float> plain(n * n), probed(n * n);
  CHECK(cudaMemcpy(plain.data(), c[0], n * n * sizeof(float), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(probed.data(), c[2], n * n * sizeof(float), cudaMemcpyDeviceToHost));
  timed.right = plain == probed;
  for (int sample = 0; sample < 1000; ++sample) {  // sums of small integers are exact
    const int row = sample * 37 % n, column = sample * 101 % n;
    double sum = 0;
    for (int k = 0; k < n; ++k) sum += (row * n + k) % 7 * ((k * n + column) % 5);
    timed.right &= probed[row * n + column] == sum;
  }
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  for (float *result : c) CHECK(cudaFree(result));
  return timed;
}

static Timed reduce(int launches) {
  constexpr int n = 64 << 20, kThreads = 256, kBlocks = 2048;
  unsigned *values = allocate<unsigned>(n);
  unsigned long long *totals = allocate<unsigned long long>(kVariants), host[kVariants];
  fill_words<<<1024, 256>>>(values, n);
  void (*kernels[])(const unsigned *, unsigned long long *, int) = {reduce_plain, reduce_control,
                                                                    reduce_probed};
  Timed timed{"reduce", kBlocks, kThreads, {}, true};
  time_variants(timed, launches, [&](int variant) {
    kernels[variant]<<<kBlocks, kThreads>>>(values, totals + variant, n);
  });
  unsigned long long expected = 0;
  for (int i = 0; i < n; ++i) expected += static_cast<unsigned>(i) * 2654435761u >> 20;
  CHECK(cudaMemcpy(host, totals, sizeof host, cudaMemcpyDeviceToHost));
  for (unsigned long long total : host)
    timed.right &= total == expected * static_cast<unsigned long long>(launches + kWarmUp);
  CHECK(cudaFree(values));
  CHECK(cudaFree(totals));
  return timed;
}

int main(int argc, char **argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 200;
  if (launches < 1) return 2;
  unsigned long long threads = 0;
  bool right = true;
  std::printf("{\"launches\": %d, \"kernels\": [", launches);
  const char *comma = "";
  for (Timed (*run)(int) : {vecadd, matmul, reduce}) {
    const Timed timed = run(launches);
    threads += 1ull * timed.blocks * timed.threads * (launches + kWarmUp);
    right &= timed.right;
    std::printf(
        "%s{\"name\": \"%s\", \"blocks\": %u, \"plain_us\": %.3f, \"control_us\": %.3f, "
        "\"probed_us\": %.3f, \"right\": %s}",
        comma, timed.name, timed.blocks, timed.median[0], timed.median[1], timed.median[2],
        timed.right ? "true" : "false");
    comma = ", ";
  }
  std::printf("], \"probed_threads\": %llu}\n", threads);
  return right ? 0 : 1;
}
