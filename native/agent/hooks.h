/* The single list of driver entry points.
 *
 * HOOK(symbol, name for cuGetProcAddress, first version, per-thread stream, parameters): interposed.
 * It expands into the declaration of the exported symbol, the dlsym answers, the cuGetProcAddress
 * answers and the pointers to the real functions.
 * USE(symbol, parameters): called by the agent only.
 */
#ifndef EGPU_HOOKS_H
#define EGPU_HOOKS_H

#include "cuda_abi.h"

#define LAUNCH_PARAMETERS                                                                          \
    (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,   \
     unsigned shared, CUstream stream, void **params, void **extra)
#define COOPERATIVE_PARAMETERS                                                                     \
    (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,   \
     unsigned shared, CUstream stream, void **params)
#define ADD_NODE_PARAMETERS(type)                                                                  \
    (CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count, const type *p)

/* clang-format off */
#define EGPU_HOOKS(HOOK) \
  HOOK(cuInit, cuInit, 2000, 0, (unsigned flags)) \
  HOOK(cuGetProcAddress, cuGetProcAddress, 11030, 0, (const char *symbol, void **pfn, int version, uint64_t flags)) \
  HOOK(cuGetProcAddress_v2, cuGetProcAddress, 12000, 0, (const char *symbol, void **pfn, int version, uint64_t flags, int *status)) \
  HOOK(cuModuleLoad, cuModuleLoad, 2000, 0, (CUmodule *module, const char *path)) \
  HOOK(cuModuleLoadData, cuModuleLoadData, 2000, 0, (CUmodule *module, const void *image)) \
  HOOK(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, 0, (CUmodule *module, const void *image, unsigned count, int *options, void **values)) \
  HOOK(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000, 0, (CUmodule *module, const void *image)) \
  HOOK(cuModuleUnload, cuModuleUnload, 2000, 0, (CUmodule module)) \
  HOOK(cuModuleGetFunction, cuModuleGetFunction, 2000, 0, (CUfunction *f, CUmodule module, const char *name)) \
  HOOK(cuLibraryLoadData, cuLibraryLoadData, 12000, 0, (CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options, void **values, unsigned count)) \
  HOOK(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000, 0, (CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned jit_count, int *options, void **values, unsigned count)) \
  HOOK(cuLibraryUnload, cuLibraryUnload, 12000, 0, (CUlibrary library)) \
  HOOK(cuLibraryGetKernel, cuLibraryGetKernel, 12000, 0, (CUkernel *kernel, CUlibrary library, const char *name)) \
  HOOK(cuLibraryGetModule, cuLibraryGetModule, 12000, 0, (CUmodule *module, CUlibrary library)) \
  HOOK(cuKernelGetFunction, cuKernelGetFunction, 12000, 0, (CUfunction *f, CUkernel kernel)) \
  HOOK(cuFuncSetAttribute, cuFuncSetAttribute, 9000, 0, (CUfunction f, int attribute, int value)) \
  HOOK(cuFuncSetCacheConfig, cuFuncSetCacheConfig, 3000, 0, (CUfunction f, int config)) \
  HOOK(cuKernelSetAttribute, cuKernelSetAttribute, 12000, 0, (int attribute, int value, CUkernel kernel, CUdevice device)) \
  HOOK(cuKernelSetCacheConfig, cuKernelSetCacheConfig, 12000, 0, (CUkernel kernel, int config, CUdevice device)) \
  HOOK(cuLaunchKernel, cuLaunchKernel, 4000, 0, LAUNCH_PARAMETERS) \
  HOOK(cuLaunchKernel_ptsz, cuLaunchKernel, 7000, 1, LAUNCH_PARAMETERS) \
  HOOK(cuLaunchKernelEx, cuLaunchKernelEx, 11060, 0, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)) \
  HOOK(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060, 1, (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)) \
  HOOK(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, 0, COOPERATIVE_PARAMETERS) \
  HOOK(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, 9000, 1, COOPERATIVE_PARAMETERS) \
  HOOK(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, 9000, 0, (void *list, unsigned count, unsigned flags)) \
  HOOK(cuLaunch, cuLaunch, 2000, 0, (CUfunction f)) \
  HOOK(cuLaunchGrid, cuLaunchGrid, 2000, 0, (CUfunction f, int width, int height)) \
  HOOK(cuLaunchGridAsync, cuLaunchGridAsync, 2000, 0, (CUfunction f, int width, int height, CUstream stream)) \
  HOOK(cuGraphLaunch, cuGraphLaunch, 10000, 0, (CUgraphExec exec, CUstream stream)) \
  HOOK(cuGraphLaunch_ptsz, cuGraphLaunch, 10000, 1, (CUgraphExec exec, CUstream stream)) \
  HOOK(cuGraphAddKernelNode, cuGraphAddKernelNode, 10000, 0, ADD_NODE_PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v1)) \
  HOOK(cuGraphAddKernelNode_v2, cuGraphAddKernelNode, 12000, 0, ADD_NODE_PARAMETERS(CUDA_KERNEL_NODE_PARAMS_v2)) \
  HOOK(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams, 10000, 0, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *p)) \
  HOOK(cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeGetParams, 12000, 0, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *p)) \
  HOOK(cuGraphKernelNodeSetParams, cuGraphKernelNodeSetParams, 10000, 0, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)) \
  HOOK(cuGraphKernelNodeSetParams_v2, cuGraphKernelNodeSetParams, 12000, 0, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p)) \
  HOOK(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams, 10010, 0, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)) \
  HOOK(cuGraphExecKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams, 12000, 0, (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p)) \
  HOOK(cuGraphAddNode, cuGraphAddNode, 12020, 0, (CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count, CUgraphNodeParams *p)) \
  HOOK(cuGraphAddNode_v2, cuGraphAddNode, 12030, 0, (CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t count, CUgraphNodeParams *p)) \
  HOOK(cuGraphNodeSetParams, cuGraphNodeSetParams, 12020, 0, (CUgraphNode node, CUgraphNodeParams *p)) \
  HOOK(cuGraphExecNodeSetParams, cuGraphExecNodeSetParams, 12020, 0, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p)) \
  HOOK(cuMemAlloc_v2, cuMemAlloc, 3020, 0, (CUdeviceptr *address, size_t size)) \
  HOOK(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, 0, (CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)) \
  HOOK(cuMemAllocManaged, cuMemAllocManaged, 6000, 0, (CUdeviceptr *address, size_t size, unsigned flags)) \
  HOOK(cuMemFree_v2, cuMemFree, 3020, 0, (CUdeviceptr address)) \
  HOOK(cuMemAllocAsync, cuMemAllocAsync, 11020, 0, (CUdeviceptr *address, size_t size, CUstream stream)) \
  HOOK(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, 1, (CUdeviceptr *address, size_t size, CUstream stream)) \
  HOOK(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, 0, (CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)) \
  HOOK(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, 1, (CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)) \
  HOOK(cuMemFreeAsync, cuMemFreeAsync, 11020, 0, (CUdeviceptr address, CUstream stream)) \
  HOOK(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, 1, (CUdeviceptr address, CUstream stream)) \
  HOOK(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, 0, (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)) \
  HOOK(cuMemCreate, cuMemCreate, 10020, 0, (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags)) \
  HOOK(cuMemRelease, cuMemRelease, 10020, 0, (CUmemGenericAllocationHandle handle)) \
  HOOK(cuMemMap, cuMemMap, 10020, 0, (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
  HOOK(cuMemSetAccess, cuMemSetAccess, 10020, 0, (CUdeviceptr address, size_t size, const CUmemAccessDesc *descriptions, size_t count)) \
  HOOK(cuMemUnmap, cuMemUnmap, 10020, 0, (CUdeviceptr address, size_t size)) \
  HOOK(cuMemAddressFree, cuMemAddressFree, 10020, 0, (CUdeviceptr address, size_t size)) \
  HOOK(cuCtxDestroy, cuCtxDestroy, 2000, 0, (CUcontext context)) \
  HOOK(cuCtxDestroy_v2, cuCtxDestroy, 4000, 0, (CUcontext context)) \
  HOOK(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, 0, (CUdevice device)) \
  HOOK(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, 0, (CUdevice device)) \
  HOOK(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, 0, (CUdevice device)) \
  HOOK(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, 0, (CUdevice device))

#define EGPU_USES(USE) \
  USE(cuThreadExchangeStreamCaptureMode, (int *mode)) \
  USE(cuCtxGetCurrent, (CUcontext *context)) \
  USE(cuCtxSetCurrent, (CUcontext context)) \
  USE(cuCtxGetDevice, (CUdevice *device)) \
  USE(cuCtxSynchronize, (void)) \
  USE(cuDeviceGetCount, (int *count)) \
  USE(cuDeviceGet, (CUdevice *device, int ordinal)) \
  USE(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device)) \
  USE(cuDeviceGetName, (char *name, int length, CUdevice device)) \
  USE(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active)) \
  USE(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device)) \
  USE(cuMemPoolGetAccess, (int *flags, CUmemoryPool pool, CUmemLocation *location)) \
  USE(cuMemHostRegister_v2, (void *memory, size_t size, unsigned flags)) \
  USE(cuMemHostUnregister, (void *memory)) \
  USE(cuMemHostGetDevicePointer_v2, (CUdeviceptr *address, void *memory, unsigned flags)) \
  USE(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream)) \
  USE(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream stream)) \
  USE(cuMemcpyBatchAsync, (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *firsts, size_t attribute_count, size_t *failed, CUstream stream)) \
  USE(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D_v2 *copy, CUstream stream)) \
  USE(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t size, CUstream stream)) \
  USE(cuStreamCreate, (CUstream *stream, unsigned flags)) \
  USE(cuStreamDestroy_v2, (CUstream stream)) \
  USE(cuStreamQuery, (CUstream stream)) \
  USE(cuStreamSynchronize, (CUstream stream)) \
  USE(cuStreamGetCtx, (CUstream stream, CUcontext *context)) \
  USE(cuStreamIsCapturing, (CUstream stream, int *status)) \
  USE(cuModuleGetGlobal_v2, (CUdeviceptr *address, size_t *size, CUmodule module, const char *name)) \
  USE(cuFuncGetAttribute, (int *value, int attribute, CUfunction f)) \
  USE(cuFuncGetParamInfo, (CUfunction f, size_t index, size_t *offset, size_t *size)) \
  USE(cuFuncGetName, (const char **name, CUfunction f)) \
  USE(cuFuncGetModule, (CUmodule *module, CUfunction f)) \
  USE(cuFuncLoad, (CUfunction f)) \
  USE(cuKernelGetName, (const char **name, CUkernel kernel)) \
  USE(cuKernelGetLibrary, (CUlibrary *library, CUkernel kernel)) \
  USE(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction f, int threads, size_t shared)) \
  USE(cuOccupancyMaxActiveClusters, (int *clusters, CUfunction f, const CUlaunchConfig *config))
/* clang-format on */

#define EGPU_DECLARE_HOOK(symbol, name, since, ptsz, parameters)                                   \
    __attribute__((visibility("default"))) CUresult symbol parameters;
EGPU_HOOKS(EGPU_DECLARE_HOOK)
#undef EGPU_DECLARE_HOOK

enum egpu_entry_point {
#define EGPU_NUMBER(symbol, ...) EP_##symbol,
    EGPU_HOOKS(EGPU_NUMBER)
    EP_HOOKS,
    EP_LAST_HOOK = EP_HOOKS - 1,
    EGPU_USES(EGPU_NUMBER)
    EP_COUNT
#undef EGPU_NUMBER
};

#define EGPU_TYPE_HOOK(symbol, name, since, ptsz, parameters)                                      \
    typedef CUresult egpu_type_##symbol parameters;
#define EGPU_TYPE_USE(symbol, parameters) typedef CUresult egpu_type_##symbol parameters;
EGPU_HOOKS(EGPU_TYPE_HOOK)
EGPU_USES(EGPU_TYPE_USE)
#undef EGPU_TYPE_HOOK
#undef EGPU_TYPE_USE

/* The real function, or NULL when this driver does not have it. */
void *egpu_real(enum egpu_entry_point point);
#define REAL(symbol) ((egpu_type_##symbol *)egpu_real(EP_##symbol))

/* Call the real function; CUDA_ERROR_NOT_FOUND when this driver does not have it. */
#define CALL(symbol, ...)                                                                          \
    (REAL(symbol) != NULL ? REAL(symbol)(__VA_ARGS__) : (CUresult)CUDA_ERROR_NOT_FOUND)

#endif
