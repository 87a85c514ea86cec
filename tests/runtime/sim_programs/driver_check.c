/* A driver-API program for the stand-in driver: `driver_check PART`, exit 0 when all holds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"

#define EXPECT(wanted, call) \
  do { \
    CUresult got = (call); \
    if (got != (wanted)) { \
      const char *name = "?"; \
      cuGetErrorName(got, &name); \
      fprintf(stderr, "%s:%d: %s gave %d (%s), not %d\n", __FILE__, __LINE__, #call, got, name, (wanted)); \
      exit(1); \
    } \
  } while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)
#define HOLDS(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1); \
    } \
  } while (0)

static const char image[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter = 100;\n"
    ".const .align 4 .u32 step[2] = {1, 10};\n"
    /* data[i] += amount, counter += step[1] per thread */
    ".visible .entry bump(.param .u64 data, .param .u32 amount)\n"
    "{ .reg .b32 %r<9>; .reg .b64 %rd<9>;\n"
    "ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [amount];\n"
    "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;\n"
    "mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd1, %rd2;\n"
    "ld.global.u32 %r6, [%rd3]; add.u32 %r6, %r6, %r1; st.global.u32 [%rd3], %r6;\n"
    "ld.const.u32 %r7, [step+4]; red.global.add.u32 [counter], %r7; ret; }\n"
    ".visible .entry nothing() { ret; }\n"
    ".visible .entry crash() { .reg .b32 %r<2>; ld.global.u32 %r1, [16]; ret; }\n"
    ".visible .entry shared_user() .maxntid 128 { .shared .align 4 .b8 tile[1024]; st.shared.u32 [tile], 1; ret; }\n"
    ".visible .entry unknown() { .reg .b32 %r<2>; wgmma.fence.sync.aligned; ret; }\n";

static CUcontext context;
static CUmodule module;
static CUfunction bump, nothing;

static void start(void) {
  CUdevice device;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  OK(cuModuleLoadData(&module, image));
  OK(cuModuleGetFunction(&bump, module, "bump"));
  OK(cuModuleGetFunction(&nothing, module, "nothing"));
}

static unsigned first_of(CUdeviceptr data) {
  unsigned value;
  OK(cuMemcpyDtoH_v2(&value, data, sizeof value));
  return value;
}

static void part_device(void) {
  int value, count;
  char name[64];
  size_t bytes, available;
  CUcontext current, made;
  EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
  start();
  OK(cuDeviceGetCount(&count));
  HOLDS(count == 1);
  OK(cuDeviceGetName(name, sizeof name, 0));
  HOLDS(!strcmp(name, "egpu simulated device (sm_90)"));
  OK(cuDeviceGetAttribute(&value, 75, 0));
  HOLDS(value == 9);
  OK(cuDeviceGetAttribute(&value, 16, 0));
  HOLDS(value == 4);
  EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, 16, 1));
  OK(cuDriverGetVersion(&value));
  HOLDS(value == 13000);
  OK(cuMemGetInfo_v2(&available, &bytes));
  HOLDS(available < bytes);
  OK(cuCtxCreate_v4(&made, NULL, 0, 0));
  OK(cuCtxGetCurrent(&current));
  HOLDS(current == made);
  OK(cuCtxDestroy_v2(made));
  OK(cuCtxGetCurrent(&current));
  HOLDS(current == context);
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(made));
  OK(cuCtxSetCurrent(NULL));
  EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2((CUdeviceptr[1]){0}, 4));
}

static void part_memory(void) {
  CUdeviceptr a, b, base;
  size_t size;
  unsigned values[8] = {1, 2, 3, 4, 5, 6, 7, 8}, back[8] = {0};
  start();
  OK(cuMemAlloc_v2(&a, sizeof values));
  OK(cuMemAlloc_v2(&b, sizeof values));
  OK(cuMemcpyHtoD_v2(a, values, sizeof values));
  OK(cuMemcpyDtoD_v2(b, a, sizeof values));
  OK(cuMemsetD32_v2(b + 8, 9, 2));
  OK(cuMemcpyDtoH_v2(back, b, sizeof back));
  HOLDS(back[0] == 1 && back[2] == 9 && back[3] == 9 && back[4] == 5);
  OK(cuMemGetAddressRange_v2(&base, &size, b + 5));
  HOLDS(base == b && size == sizeof values);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a, values, sizeof values + 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(a + 4));
  OK(cuMemFree_v2(a));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(a));
  EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&a, (size_t)1 << 40));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&a, 0));
  CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = b, .srcPitch = 16, .dstMemoryType = CU_MEMORYTYPE_HOST,
                        .dstHost = back, .dstPitch = 4, .WidthInBytes = 4, .Height = 2};
  OK(cuMemcpy2D_v2(&rows));
  HOLDS(back[0] == 1 && back[1] == 5);
}

static void part_pools(void) {
  CUdeviceptr a, b;
  CUmemoryPool own, pool;
  CUstream stream;
  CUgraph graph;
  uint64_t threshold = 1 << 20, found = 0;
  int flags;
  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc nobody = {here, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  start();
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuDeviceGetDefaultMemPool(&own, 0));
  OK(cuMemPoolCreate(&pool, &properties));
  OK(cuMemPoolSetAttribute(pool, 4, &threshold));
  OK(cuMemPoolGetAttribute(pool, 4, &found));
  HOLDS(found == threshold);
  OK(cuMemPoolGetAccess(&flags, pool, &here));
  HOLDS(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAccess(pool, &nobody, 1));
  OK(cuDeviceSetMemPool(0, pool));
  OK(cuMemAllocAsync(&a, 32, stream));
  OK(cuMemAllocFromPoolAsync_ptsz(&b, 32, own, NULL));
  OK(cuMemsetD32_v2(a, 7, 8));
  HOLDS(first_of(a + 28) == 7);
  unsigned amount = 3;
  void *values[] = {&a, &amount};
  OK(cuLaunchKernel(bump, 1, 1, 1, 8, 1, 1, 0, stream, values, NULL));
  HOLDS(first_of(a) == 10);
  OK(cuMemPoolDestroy(pool)); /* what it gave stays */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolTrimTo(pool, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(own));
  HOLDS(first_of(a) == 10);
  OK(cuDeviceGetMemPool(&pool, 0));
  HOLDS(pool == own);
  OK(cuMemPoolTrimTo(pool, 0));
  OK(cuMemFreeAsync(a, stream));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(a, stream));
  OK(cuMemFree_v2(b));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemAllocAsync(&a, 32, stream));
  OK(cuStreamEndCapture(stream, &graph));
  amount = 1;
  OK(cuMemAlloc_v2(&b, 32));
  OK(cuMemFree_v2(b));
  OK(cuLaunchKernel(bump, 1, 1, 1, 8, 1, 1, 0, stream, (void *[]){&b, &amount}, NULL));
  EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

static void part_mappings(void) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemAccessDesc all = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}, none = {properties.location, 0};
  CUmemGenericAllocationHandle one, two, again;
  CUdeviceptr base;
  size_t unit, before, after, total;
  unsigned long long flags;
  unsigned pair[2] = {5, 6}, back[2] = {0};
  start();
  OK(cuMemGetInfo_v2(&before, &total));
  OK(cuMemGetAllocationGranularity(&unit, &properties, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&one, unit + 1, &properties, 0));
  OK(cuMemCreate(&one, unit, &properties, 0));
  OK(cuMemCreate(&two, unit, &properties, 0));
  OK(cuMemAddressReserve(&base, 4 * unit, 4 * unit, 0, 0));
  HOLDS(base % (4 * unit) == 0);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(base + 4 * unit, unit, 0, one, 0));
  OK(cuMemMap(base, unit, 0, one, 0));
  OK(cuMemMap(base + unit, unit, 0, two, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(base + unit, unit, 0, one, 0));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(base, pair, sizeof pair)); /* no access yet */
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(base, 3 * unit, &all, 1));
  OK(cuMemSetAccess(base, 2 * unit, &all, 1));
  OK(cuMemGetAccess(&flags, &properties.location, base + unit));
  HOLDS(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemcpyHtoD_v2(base + unit - 4, pair, sizeof pair)); /* from one to the next */
  OK(cuMemMap(base + 2 * unit, unit, 0, one, 0)); /* the first one's memory at a second address */
  OK(cuMemSetAccess(base + 2 * unit, unit, &all, 1));
  HOLDS(first_of(base + 3 * unit - 4) == 5 && first_of(base + unit) == 6);
  unsigned amount = 1;
  CUdeviceptr place = base + 3 * unit - 32;
  void *values[] = {&place, &amount};
  OK(cuLaunchKernel(bump, 1, 1, 1, 8, 1, 1, 0, NULL, values, NULL));
  OK(cuMemcpyDtoH_v2(back, base + unit - 4, sizeof back));
  HOLDS(back[0] == 6 && back[1] == 6);
  OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)base));
  HOLDS(again == one);
  OK(cuMemRelease(one));
  OK(cuMemRelease(one));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(one));
  OK(cuMemRelease(two));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base, unit / 2));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, 4 * unit));
  OK(cuMemSetAccess(base + unit, unit, &none, 1));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(back, base + unit, 4));
  OK(cuMemUnmap(base, 2 * unit));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(base + 2 * unit));
  HOLDS(first_of(base + 3 * unit - 4) == 6);
  OK(cuMemUnmap(base + 2 * unit, unit));
  OK(cuMemAddressFree(base, 4 * unit));
  OK(cuMemGetInfo_v2(&after, &total));
  HOLDS(after == before);
  OK(cuLaunchKernel(bump, 1, 1, 1, 8, 1, 1, 0, NULL, values, NULL));
  EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

static void part_launch(void) {
  CUdeviceptr data, counter;
  size_t size, offset;
  unsigned amount = 5;
  const char *name;
  int value;
  start();
  OK(cuMemAlloc_v2(&data, 4 * 64));
  OK(cuMemsetD32_v2(data, 1000, 64));
  void *values[] = {&data, &amount};
  OK(cuLaunchKernel(bump, 2, 1, 1, 32, 1, 1, 0, NULL, values, NULL));
  HOLDS(first_of(data) == 1005 && first_of(data + 4 * 63) == 1005);
  OK(cuModuleGetGlobal_v2(&counter, &size, module, "counter"));
  HOLDS(size == 4 && first_of(counter) == 100 + 64 * 10);
  unsigned char packed[12];
  size_t packed_size = sizeof packed;
  memcpy(packed, &data, 8);
  memcpy(packed + 8, &amount, 4);
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_size, CU_LAUNCH_PARAM_END};
  OK(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
  HOLDS(first_of(data) == 1010);
  packed_size = 8;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
  CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
  CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, &cooperative, 1};
  OK(cuLaunchKernelEx(&config, bump, values, NULL));
  HOLDS(first_of(data) == 1015);
  config.gridDimX = 4 * 32 + 1;
  config.blockDimX = 64;
  EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchKernelEx(&config, nothing, NULL, NULL));
  OK(cuLaunchCooperativeKernel(nothing, 4 * 32, 1, 1, 64, 1, 1, 0, NULL, NULL));
  OK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(nothing, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(nothing, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL));
  OK(cuFuncGetParamInfo(bump, 1, &offset, &size));
  HOLDS(offset == 8 && size == 4);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(bump, 2, &offset, &size));
  OK(cuFuncGetName(&name, bump));
  HOLDS(!strcmp(name, "bump"));
  CUfunction user;
  OK(cuModuleGetFunction(&user, module, "shared_user"));
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, user));
  HOLDS(value == 1024);
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, user));
  HOLDS(value == 128);
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(user, 1, 1, 1, 129, 1, 1, 0, NULL, NULL, NULL));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(user, 1, 1, 1, 32, 1, 1, 48 * 1024, NULL, NULL, NULL));
  OK(cuFuncSetAttribute(user, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 * 1024));
  OK(cuLaunchKernel(user, 1, 1, 1, 32, 1, 1, 48 * 1024, NULL, NULL, NULL));
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, user, 128, 31 * 1024));
  HOLDS(value == 7);
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&user, module, "absent"));
  OK(cuModuleUnload(module));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(&amount, counter, 4));
}

static void part_library(void) {
  CUlibrary library;
  CUkernel kernel;
  CUfunction function;
  const char *name;
  unsigned count;
  start();
  OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernelCount(&count, library));
  HOLDS(count == 5);
  OK(cuLibraryGetKernel(&kernel, library, "nothing"));
  OK(cuKernelGetFunction(&function, kernel));
  HOLDS((void *)function != (void *)kernel);
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuFuncGetName(&name, (CUfunction)kernel));
  OK(cuKernelGetName(&name, kernel));
  HOLDS(!strcmp(name, "nothing"));
  OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
  OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
  OK(cuLibraryUnload(library));
  CUfunction all[5];
  OK(cuModuleEnumerateFunctions(all, 5, module));
  HOLDS(all[0] == bump && all[1] == nothing);
}

static void part_capture(void) {
  CUstream stream, other;
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode nodes[4];
  CUdeviceptr data, denied;
  unsigned amount = 3;
  int status, mode, type;
  size_t count = 4;
  start();
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, 0));
  OK(cuMemAlloc_v2(&data, 4));
  OK(cuMemsetD32_v2(data, 0, 1));
  void *values[] = {&data, &amount};

  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, stream, values, NULL));
  amount = 50; /* the node keeps the value it was given */
  OK(cuMemsetD32Async(data, 7, 1, stream));
  OK(cuStreamIsCapturing(stream, &status));
  HOLDS(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  amount = 3;
  OK(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, stream, values, NULL));
  HOLDS(*(unsigned *)(uintptr_t)data == 0); /* nothing ran */
  mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  HOLDS(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  OK(cuMemAlloc_v2(&denied, 4));
  OK(cuMemFree_v2(denied));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphGetNodes(graph, nodes, &count));
  HOLDS(count == 3);
  OK(cuGraphNodeGetType(nodes[1], &type));
  HOLDS(type == 2);
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuGraphLaunch(exec, stream));
  HOLDS(first_of(data) == 10);
  CUDA_KERNEL_NODE_PARAMS node;
  OK(cuGraphKernelNodeGetParams_v2(nodes[2], &node));
  HOLDS(node.func == bump && *(unsigned *)node.kernelParams[1] == 3);
  amount = 20;
  node.kernelParams = values;
  OK(cuGraphExecKernelNodeSetParams_v2(exec, nodes[2], &node));
  OK(cuGraphDestroy(graph));
  OK(cuGraphLaunch(exec, stream));
  HOLDS(first_of(data) == 27);
  OK(cuGraphExecDestroy(exec));

  /* a call that may not be made while capturing: 900, then everything in the capture 901 */
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&denied, 4));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, stream, values, NULL));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
  HOLDS(!graph);
  OK(cuMemAlloc_v2(&denied, 4));

  /* the legacy stream may not be used while a blocking stream captures */
  OK(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(other, &graph));

  /* a second stream joins by an event and must come back */
  CUevent fork_event, join_event;
  OK(cuEventCreate(&fork_event, 0));
  OK(cuEventCreate(&join_event, 0));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(fork_event, stream));
  OK(cuStreamWaitEvent(other, fork_event, 0));
  OK(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, other, values, NULL));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
  EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(fork_event, stream));
  OK(cuStreamWaitEvent(other, fork_event, 0));
  OK(cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, other, values, NULL));
  OK(cuEventRecord(join_event, other));
  OK(cuStreamWaitEvent(stream, join_event, 0));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamSynchronize(other));
  OK(cuStreamDestroy_v2(other));
  OK(cuGraphDestroy(graph));
}

static void part_host_memory(void) {
  int fd = memfd_create("arena", 0);
  HOLDS(fd >= 0 && !ftruncate(fd, 8192));
  unsigned *words = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  unsigned *second = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CUdeviceptr address;
  unsigned amount = 4;
  void *values[] = {&address, &amount};
  start();
  OK(cuMemHostRegister_v2(words, 8192, 2));
  EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(words + 1024, 4096, 2));
  OK(cuMemHostGetDevicePointer_v2(&address, words, 0));
  HOLDS(address == (uintptr_t)words);
  words[3] = 30;
  OK(cuLaunchKernel(bump, 1, 1, 1, 8, 1, 1, 0, NULL, values, NULL));
  HOLDS(second[3] == 34 && second[7] == 4 && second[8] == 0);
  OK(cuMemHostUnregister(words));
  EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(words));
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemHostRegister_v2(malloc(8192), 8192, 2));
  unsigned *pinned;
  OK(cuMemHostAlloc((void **)&pinned, 64, 2));
  memset(pinned, 0, 64);
  OK(cuMemHostGetDevicePointer_v2(&address, pinned, 0));
  OK(cuLaunchKernel(bump, 1, 1, 1, 8, 1, 1, 0, NULL, values, NULL));
  HOLDS(pinned[7] == 4);
  OK(cuMemFreeHost(pinned));
}

static void part_fault(void) {
  CUfunction crash;
  CUdeviceptr data;
  start();
  OK(cuModuleGetFunction(&crash, module, "crash"));
  OK(cuLaunchKernel(crash, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&data, 4));
}

static void part_refusals(void) {
  CUfunction unknown;
  CUmodule other;
  const void *table = &table;
  char log[200] = "";
  int options[] = {5, 6};
  void *values[] = {log, (void *)sizeof log};
  start();
  OK(cuModuleGetFunction(&unknown, module, "unknown"));
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuLaunchKernel(unknown, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  OK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)); /* the context is whole */
  HOLDS(cuModuleLoadDataEx(&other, ".version 7.0\n.target sm_70\n.address_size 64\n.entry k( {", 2, options, values) != 0);
  HOLDS(strlen(log) > 10);
  EXPECT(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&other, "\177ELF\2\1\1"));
  EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&other, "/nonexistent"));
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGetExportTable(&table, &(CUuuid){{1}}));
  EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGetExportTable(&table, &(CUuuid){{2}}));
  HOLDS(!table);
}

static void part_lookup(void) {
  void *function, *newer;
  int status;
  start();
  OK(cuGetProcAddress_v2("cuCtxCreate", &function, 11000, 0, &status));
  HOLDS(function == (void *)cuCtxCreate_v2);
  OK(cuGetProcAddress_v2("cuCtxCreate", &newer, 13000, 0, &status));
  HOLDS(newer == (void *)cuCtxCreate_v4);
  OK(cuGetProcAddress_v2("cuLaunchKernel", &function, 13000, 2, &status));
  HOLDS(function == (void *)cuLaunchKernel_ptsz);
  OK(cuGetProcAddress_v2("cuGetProcAddress", &function, 12000, 0, &status));
  HOLDS(function == (void *)cuGetProcAddress_v2);
  OK(cuGetProcAddress_v2("cuNoSuchThing", &function, 13000, 0, &status));
  HOLDS(!function && status == 1);
  OK(cuGetProcAddress_v2("cuLibraryLoadData", &function, 11000, 0, &status));
  HOLDS(!function && status == 2);
  EXPECT(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchThing", &function, 13000, 0));
}

static const char printing[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
    ".global .align 1 .b8 format[8] = {104, 105, 32, 37, 100, 10, 0};\n"
    ".visible .entry greet() { .local .align 8 .b8 depot[8]; .reg .b32 %r<3>; .reg .b64 %rd<5>;\n"
    "mov.u32 %r1, %tid.x; mov.u64 %rd1, depot; st.local.u32 [%rd1], %r1; cvta.local.u64 %rd2, %rd1;\n"
    "mov.u64 %rd3, format; { .param .b64 f; st.param.b64 [f], %rd3; .param .b64 a; st.param.b64 [a], %rd2;\n"
    ".param .b32 r; call.uni (r), vprintf, (f, a); } ret; }\n";

static void part_print(void) {
  CUfunction greet;
  start();
  OK(cuModuleLoadData(&module, printing));
  OK(cuModuleGetFunction(&greet, module, "greet"));
  OK(cuLaunchKernel(greet, 1, 1, 1, 2, 1, 1, 0, NULL, NULL, NULL));
}

/* Prints "ready", waits for a byte (the server is killed meanwhile), and must get errors, not hang. */
static void part_lost(void) {
  CUdeviceptr data;
  start();
  puts("ready");
  fflush(stdout);
  getchar();
  EXPECT(CUDA_ERROR_UNKNOWN, cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  EXPECT(CUDA_ERROR_UNKNOWN, cuMemAlloc_v2(&data, 4));
}

static void part_fork(void) {
  CUdeviceptr data;
  start();
  pid_t child = fork();
  if (!child) {
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&data, 4));
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
    _exit(0);
  }
  int status;
  HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
  OK(cuMemAlloc_v2(&data, 4));
}

/* The program writes a constant variable before the first launch and between launches. */
static void part_constants(void) {
  CUdeviceptr data, counter, step;
  size_t size;
  unsigned amount = 1, expected = 100;
  static const unsigned steps[] = {7, 1000, 3};
  start();
  OK(cuMemAlloc_v2(&data, 64 * sizeof(unsigned)));
  OK(cuModuleGetGlobal_v2(&step, &size, module, "step"));
  HOLDS(size == 2 * sizeof(unsigned));
  OK(cuModuleGetGlobal_v2(&counter, &size, module, "counter"));
  void *arguments[] = {&data, &amount};
  for (int i = 0; i < 3; i++) {
    OK(cuMemcpyHtoD_v2(step + sizeof(unsigned), &steps[i], sizeof steps[i]));
    OK(cuLaunchKernel(bump, 2, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL));
    OK(cuCtxSynchronize());
    expected += 64 * steps[i];
    HOLDS(first_of(counter) == expected);
  }
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } parts[] = {
      {"device", part_device},     {"memory", part_memory}, {"launch", part_launch},     {"library", part_library},
      {"capture", part_capture},   {"host", part_host_memory}, {"fault", part_fault},    {"refusals", part_refusals},
      {"print", part_print},       {"lost", part_lost},       {"lookup", part_lookup},     {"fork", part_fork},
      {"constants", part_constants}, {"pools", part_pools},   {"mappings", part_mappings},
  };
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (argc == 2 && !strcmp(argv[1], parts[i].name)) {
      parts[i].run();
      puts("ok");
      return 0;
    }
  return 2;
}
