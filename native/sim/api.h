/* The driver entry points that this library exports.  Per-thread-stream forms: per_thread.c. */
#ifndef EGPU_SIM_API_H
#define EGPU_SIM_API_H

#include "abi.h"

/* state.c */
API CUresult cuInit(unsigned flags);
API CUresult cuDriverGetVersion(int *version);
API CUresult cuGetErrorName(CUresult error, const char **name);
API CUresult cuGetErrorString(CUresult error, const char **text);
API CUresult cuGetExportTable(const void **table, const CUuuid *id);
/* device.c */
API CUresult cuDeviceGetCount(int *count);
API CUresult cuDeviceGet(CUdevice *device, int ordinal);
API CUresult cuDeviceGetName(char *name, int size, CUdevice device);
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device);
API CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device);
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
API CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device);
API CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device);
API CUresult cuCtxDestroy_v2(CUcontext context);
API CUresult cuCtxPushCurrent_v2(CUcontext context);
API CUresult cuCtxPopCurrent_v2(CUcontext *context);
API CUresult cuCtxSetCurrent(CUcontext context);
API CUresult cuCtxGetCurrent(CUcontext *context);
API CUresult cuCtxGetDevice(CUdevice *device);
API CUresult cuCtxGetFlags(unsigned *flags);
API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version);
API CUresult cuCtxGetId(CUcontext context, unsigned long long *id);
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
API CUresult cuCtxSynchronize(void);
/* module.c */
API CUresult cuModuleLoadData(CUmodule *module, const void *image);
API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values);
API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
API CUresult cuModuleLoad(CUmodule *module, const char *path);
API CUresult cuModuleUnload(CUmodule module);
API CUresult cuModuleGetLoadingMode(int *mode);
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name);
API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module);
API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module);
API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *options, void **values, unsigned count, int *library_options, void **library_values, unsigned library_count);
API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *options, void **values, unsigned count, int *library_options, void **library_values, unsigned library_count);
API CUresult cuLibraryUnload(CUlibrary library);
API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
API CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library);
API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library);
API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library);
API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name);
API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel);
API CUresult cuKernelGetName(const char **name, CUkernel kernel);
/* memory.c */
API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element);
API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags);
API CUresult cuMemFree_v2(CUdeviceptr address);
API CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address);
API CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags);
API CUresult cuMemAllocHost_v2(void **pointer, size_t size);
API CUresult cuMemFreeHost(void *pointer);
API CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags);
API CUresult cuMemHostUnregister(void *pointer);
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags);
API CUresult cuMemHostGetFlags(unsigned *flags, void *pointer);
API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address);
/* graph.c */
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size);
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size);
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size);
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size);
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream);
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream);
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *what);
API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *what);
API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *what, CUstream stream);
API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count);
API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count);
API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count);
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream);
API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream);
API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data);
API CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
API CUresult cuGraphDestroy(CUgraph graph);
API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size);
API CUresult cuGraphExecDestroy(CUgraphExec exec);
API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle);
API CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle);
/* node.c */
API CUresult cuGraphNodeGetType(CUgraphNode node, int *type);
API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *given);
API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *to);
API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *to);
API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *given);
API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *given);
/* stream.c */
API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
API CUresult cuStreamCreate(CUstream *stream, unsigned flags);
API CUresult cuStreamDestroy_v2(CUstream handle);
API CUresult cuStreamSynchronize(CUstream handle);
API CUresult cuStreamQuery(CUstream handle);
API CUresult cuStreamGetFlags(CUstream handle, unsigned *flags);
API CUresult cuStreamGetPriority(CUstream handle, int *priority);
API CUresult cuStreamGetId(CUstream handle, unsigned long long *id);
API CUresult cuStreamGetCtx(CUstream handle, CUcontext *context);
API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags);
API CUresult cuEventCreate(CUevent *event, unsigned flags);
API CUresult cuEventDestroy_v2(CUevent event);
API CUresult cuEventRecord(CUevent event, CUstream handle);
API CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags);
API CUresult cuEventSynchronize(CUevent event);
API CUresult cuEventQuery(CUevent event);
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
API CUresult cuThreadExchangeStreamCaptureMode(int *mode);
API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode);
API CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph);
API CUresult cuStreamIsCapturing(CUstream handle, int *status);
API CUresult cuStreamGetCaptureInfo(CUstream handle, int *status, uint64_t *id);
API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count);
API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, const void **edges, size_t *count);
/* launch.c */
API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle);
API CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value);
API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device);
API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device);
API CUresult cuFuncSetCacheConfig(CUfunction handle, int config);
API CUresult cuFuncGetName(const char **name, CUfunction function);
API CUresult cuFuncGetModule(CUmodule *module, CUfunction function);
API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size);
API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size);
API CUresult cuFuncIsLoaded(int *state, CUfunction handle);
API CUresult cuFuncLoad(CUfunction handle);
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads, size_t dynamic_shared);
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle, int threads, size_t dynamic_shared, unsigned flags);
API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle, size_t (*shared_of)(int), size_t dynamic_shared, int limit, unsigned flags);
API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle, size_t (*shared_of)(int), size_t dynamic_shared, int limit);
API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks, int threads);
API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **values, void **extra);
API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **values);
API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction handle, void **values, void **extra);
/* lookup.c */
API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);

/* per_thread.c */
API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **values, void **extra);
API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction handle, void **values, void **extra);
API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **values);
API CUresult cuLaunchHostFunc_ptsz(CUstream stream, void (*function)(void *), void *data);
API CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
API CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t size, CUstream stream);
API CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t size, CUstream stream);
API CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *what, CUstream stream);
API CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
API CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream);
API CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream stream);
API CUresult cuStreamSynchronize_ptsz(CUstream handle);
API CUresult cuStreamQuery_ptsz(CUstream handle);
API CUresult cuStreamGetFlags_ptsz(CUstream handle, unsigned *flags);
API CUresult cuStreamGetPriority_ptsz(CUstream handle, int *priority);
API CUresult cuStreamGetId_ptsz(CUstream handle, unsigned long long *id);
API CUresult cuStreamGetCtx_ptsz(CUstream handle, CUcontext *context);
API CUresult cuStreamWaitEvent_ptsz(CUstream handle, CUevent event, unsigned flags);
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream handle, int mode);
API CUresult cuStreamEndCapture_ptsz(CUstream handle, CUgraph *graph);
API CUresult cuStreamIsCapturing_ptsz(CUstream handle, int *status);
API CUresult cuStreamGetCaptureInfo_ptsz(CUstream handle, int *status, uint64_t *id);
API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count);
API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, const void **edges, size_t *count);
API CUresult cuEventRecord_ptsz(CUevent event, CUstream handle);
API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream handle, unsigned flags);
API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream handle);
API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream handle);

#endif
