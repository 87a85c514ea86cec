/* The demo workload: launches five kernels through the CUDA driver API and checks what they computed.
 *
 *     demo [--launches N] [--size S] [--ptx FILE] [--json]
 *
 * Each kernel is launched N times over S elements (matmul: the largest square matrix of at most S).
 * One line per kernel; --json adds a last line with the totals that a probe has to find.
 * Exit code 0: everything right; 1: a wrong result or a driver error; 2: usage.
 *
 * It knows nothing of egpu: any driver-API program could stand in its place. */

#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_driver.h"

enum { TILE = 16, BINS = 64, COLLATZ_LIMIT = 64, COLLATZ_STARTS = 600 };

struct shape {
  unsigned grid_x, grid_y, block_x, block_y;
};

struct run {
  CUmodule module;
  int launches;
  int size;
  int json;
  uint64_t digest; /* FNV-1a over every result byte, the same on every run */
  int wrong;       /* kernels with a wrong result */
};

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("demo: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static void check(CUresult result, const char *call) {
  if (result == 0) return;
  const char *name = NULL;
  if (cuGetErrorName(result, &name) != 0 || name == NULL) name = "unknown error";
  fail("%s: %s (%d)", call, name, result);
}
#define CHECK(call) check((call), #call)

static void *allocate(size_t size) {
  void *memory = calloc(1, size);
  if (memory == NULL) fail("out of memory");
  return memory;
}

static char *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail("%s: %s", path, strerror(errno));
  if (fseek(file, 0, SEEK_END) != 0) fail("%s: %s", path, strerror(errno));
  long length = ftell(file);
  if (length < 0 || fseek(file, 0, SEEK_SET) != 0) fail("%s: %s", path, strerror(errno));
  char *text = allocate((size_t)length + 1); /* the driver wants a NUL at the end */
  if (fread(text, 1, (size_t)length, file) != (size_t)length) fail("%s: short read", path);
  fclose(file);
  return text;
}

/* kernels.ptx lies beside the program. */
static char *default_ptx(void) {
  static const char name[] = "kernels.ptx";
  char *path = allocate(4096 + sizeof name);
  ssize_t length = readlink("/proc/self/exe", path, 4095);
  if (length <= 0) fail("/proc/self/exe: %s", strerror(errno));
  path[length] = '\0';
  char *slash = strrchr(path, '/');
  if (slash == NULL) fail("%s: not a path", path);
  memcpy(slash + 1, name, sizeof name);
  return path;
}

static CUdeviceptr to_device(const void *source, size_t size) {
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, size));
  CHECK(cuMemcpyHtoD_v2(address, source, size));
  return address;
}

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

static void digest(struct run *run, const void *bytes, size_t size) {
  const unsigned char *byte = bytes;
  for (size_t i = 0; i < size; ++i) run->digest = (run->digest ^ byte[i]) * 0x100000001b3u;
}

static unsigned blocks(int count, int per_block) {
  return (unsigned)((count + per_block - 1) / per_block);
}

static void launch(struct run *run, const char *kernel, struct shape shape, void **parameters) {
  CUfunction function = NULL;
  check(cuModuleGetFunction(&function, run->module, kernel), kernel);
  for (int i = 0; i < run->launches; ++i)
    check(cuLaunchKernel(function, shape.grid_x, shape.grid_y, 1, shape.block_x, shape.block_y, 1, 0,
                         NULL, parameters, NULL),
          kernel);
  CHECK(cuCtxSynchronize());
}

static void report(struct run *run, const char *kernel, struct shape shape, size_t wrong) {
  printf("%-32s %5d launches  grid %ux%u  block %ux%u  %s", kernel, run->launches, shape.grid_x,
         shape.grid_y, shape.block_x, shape.block_y, wrong == 0 ? "ok\n" : "");
  if (wrong != 0) {
    printf("WRONG: %zu values\n", wrong);
    ++run->wrong;
  }
}

static struct shape run_vecadd(struct run *run, const char *kernel) {
  size_t count = (size_t)run->size, bytes = count * sizeof(float), wrong = 0;
  float *a = allocate(bytes), *b = allocate(bytes), *sum = allocate(bytes);
  for (size_t i = 0; i < count; ++i) {
    a[i] = (float)(i % 1000) * 0.5f;
    b[i] = (float)(i % 77);
  }
  CUdeviceptr device_a = to_device(a, bytes), device_b = to_device(b, bytes);
  CUdeviceptr device_sum = to_device(sum, bytes);
  struct shape shape = {blocks(run->size, 256), 1, 256, 1};
  launch(run, kernel, shape, (void *[]){&device_a, &device_b, &device_sum, &run->size});
  CHECK(cuMemcpyDtoH_v2(sum, device_sum, bytes));
  for (size_t i = 0; i < count; ++i) wrong += sum[i] != a[i] + b[i];
  digest(run, sum, bytes);
  report(run, kernel, shape, wrong);
  CHECK(cuMemFree_v2(device_a));
  CHECK(cuMemFree_v2(device_b));
  CHECK(cuMemFree_v2(device_sum));
  free(a);
  free(b);
  free(sum);
  return shape;
}

/* Small integers as floats: every partial sum is exact, so fused and plain arithmetic agree. */
static struct shape run_matmul(struct run *run, const char *kernel) {
  int edge = 1;
  while ((long)(edge + 1) * (edge + 1) <= run->size && edge < 1024) ++edge;
  size_t n = (size_t)edge, bytes = n * n * sizeof(float), wrong = 0;
  float *a = allocate(bytes), *b = allocate(bytes), *c = allocate(bytes);
  for (size_t i = 0; i < n * n; ++i) {
    a[i] = (float)(i % 7);
    b[i] = (float)(i % 5);
  }
  CUdeviceptr device_a = to_device(a, bytes), device_b = to_device(b, bytes);
  CUdeviceptr device_c = to_device(c, bytes);
  struct shape shape = {blocks(edge, TILE), blocks(edge, TILE), TILE, TILE};
  launch(run, kernel, shape, (void *[]){&device_a, &device_b, &device_c, &edge});
  CHECK(cuMemcpyDtoH_v2(c, device_c, bytes));
  for (size_t row = 0; row < n; ++row)
    for (size_t column = 0; column < n; ++column) {
      float sum = 0.0f;
      for (size_t k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
      wrong += c[row * n + column] != sum;
    }
  digest(run, c, bytes);
  report(run, kernel, shape, wrong);
  CHECK(cuMemFree_v2(device_a));
  CHECK(cuMemFree_v2(device_b));
  CHECK(cuMemFree_v2(device_c));
  free(a);
  free(b);
  free(c);
  return shape;
}

static struct shape run_reduce(struct run *run, const char *kernel) {
  size_t count = (size_t)run->size;
  uint32_t *values = allocate(count * sizeof *values), state = 1;
  uint64_t expected = 0, total = 0;
  for (size_t i = 0; i < count; ++i) expected += values[i] = next_random(&state);
  expected *= (uint64_t)run->launches; /* every launch adds to the same total */
  CUdeviceptr device_values = to_device(values, count * sizeof *values);
  CUdeviceptr device_total = to_device(&total, sizeof total);
  struct shape shape = {blocks(run->size, 512), 1, 128, 1};
  launch(run, kernel, shape, (void *[]){&device_values, &device_total, &run->size});
  CHECK(cuMemcpyDtoH_v2(&total, device_total, sizeof total));
  digest(run, &total, sizeof total);
  report(run, kernel, shape, total != expected);
  CHECK(cuMemFree_v2(device_values));
  CHECK(cuMemFree_v2(device_total));
  free(values);
  return shape;
}

static struct shape run_histogram(struct run *run, const char *kernel) {
  size_t count = (size_t)run->size, wrong = 0;
  unsigned char *values = allocate(count);
  uint32_t expected[BINS] = {0}, bins[BINS] = {0}, state = 2;
  for (size_t i = 0; i < count; ++i) {
    values[i] = (unsigned char)next_random(&state);
    expected[values[i] % BINS] += (uint32_t)run->launches;
  }
  CUdeviceptr device_values = to_device(values, count), device_bins = to_device(bins, sizeof bins);
  struct shape shape = {blocks(run->size, 768), 1, 192, 1};
  launch(run, kernel, shape, (void *[]){&device_values, &device_bins, &run->size});
  CHECK(cuMemcpyDtoH_v2(bins, device_bins, sizeof bins));
  for (size_t bin = 0; bin < BINS; ++bin) wrong += bins[bin] != expected[bin];
  digest(run, bins, sizeof bins);
  report(run, kernel, shape, wrong);
  CHECK(cuMemFree_v2(device_values));
  CHECK(cuMemFree_v2(device_bins));
  free(values);
  return shape;
}

static uint32_t collatz(uint32_t value, uint32_t limit) {
  if (value == 0) return UINT32_MAX;
  uint32_t count = 0;
  for (; value != 1; ++count) {
    if (count == limit) return limit | 0x80000000u;
    value = value % 2 == 0 ? value / 2 : 3 * value + 1;
  }
  return count;
}

static struct shape run_collatz(struct run *run, const char *kernel) {
  size_t count = (size_t)run->size, bytes = count * sizeof(uint32_t), wrong = 0;
  uint32_t *start = allocate(bytes), *steps = allocate(bytes), state = 3, limit = COLLATZ_LIMIT;
  for (size_t i = 0; i < count; ++i) start[i] = next_random(&state) % COLLATZ_STARTS;
  CUdeviceptr device_start = to_device(start, bytes), device_steps = to_device(steps, bytes);
  struct shape shape = {blocks(run->size, 96), 1, 96, 1};
  launch(run, kernel, shape, (void *[]){&device_start, &device_steps, &run->size, &limit});
  CHECK(cuMemcpyDtoH_v2(steps, device_steps, bytes));
  for (size_t i = 0; i < count; ++i) wrong += steps[i] != collatz(start[i], limit);
  digest(run, steps, bytes);
  report(run, kernel, shape, wrong);
  CHECK(cuMemFree_v2(device_start));
  CHECK(cuMemFree_v2(device_steps));
  free(start);
  free(steps);
  return shape;
}

static const struct {
  const char *kernel;
  struct shape (*run)(struct run *run, const char *kernel);
} kernels[] = {
    {"vecadd", run_vecadd},
    {"_Z6matmulILi16EEvPKfS1_Pfi", run_matmul},
    {"reduce_sum", run_reduce},
    {"histogram", run_histogram},
    {"_ZN4demo7collatzEPKjPjij", run_collatz},
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

static int number(const char *option, const char *text, int maximum) {
  char *end = NULL;
  errno = 0;
  long value = text == NULL ? 0 : strtol(text, &end, 10);
  if (text != NULL && errno == 0 && *end == '\0' && value >= 1 && value <= maximum)
    return (int)value;
  fprintf(stderr, "demo: %s wants a number from 1 to %d\n", option, maximum);
  exit(2);
}

int main(int argc, char **argv) {
  struct run run = {.launches = 10, .size = 4000, .digest = 0xcbf29ce484222325u};
  const char *ptx = NULL;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--launches") == 0) {
      run.launches = number(argv[i], argv[i + 1], 1000000);
      ++i;
    } else if (strcmp(argv[i], "--size") == 0) {
      run.size = number(argv[i], argv[i + 1], 1 << 26);
      ++i;
    } else if (strcmp(argv[i], "--ptx") == 0 && argv[i + 1] != NULL) {
      ptx = argv[++i];
    } else if (strcmp(argv[i], "--json") == 0) {
      run.json = 1;
    } else {
      fputs("usage: demo [--launches N] [--size S] [--ptx FILE] [--json]\n", stderr);
      return 2;
    }
  }
  char *own_path = ptx == NULL ? default_ptx() : NULL;
  char *text = read_file(ptx == NULL ? own_path : ptx);
  CUdevice device = 0;
  CUcontext context = NULL;
  struct shape shapes[KERNELS];
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&run.module, text));
  free(text);
  free(own_path);
  for (size_t i = 0; i < KERNELS; ++i) shapes[i] = kernels[i].run(&run, kernels[i].kernel);
  CHECK(cuModuleUnload(run.module));
  CHECK(cuDevicePrimaryCtxRelease_v2(device));
  if (run.json) {
    printf("{\"digest\": \"%016llx\", \"kernels\": {", (unsigned long long)run.digest);
    for (size_t i = 0; i < KERNELS; ++i) {
      unsigned long long count = (unsigned long long)shapes[i].grid_x * shapes[i].grid_y *
                                 (unsigned long long)run.launches;
      printf("%s\"%s\": {\"launches\": %d, \"blocks\": %llu, \"threads\": %llu}",
             i == 0 ? "" : ", ", kernels[i].kernel, run.launches, count,
             count * shapes[i].block_x * shapes[i].block_y);
    }
    puts("}}");
  }
  return run.wrong == 0 ? 0 : 1;
}
