/* The forms whose NULL stream is the calling thread's own (programs built with per-thread default
 * streams).  One row of entries.h each. */
#include "driver.h"

#include "api.h"

API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **values, void **extra) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, PER_THREAD(stream), values, extra);
}

API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction handle, void **values, void **extra) {
  NEED(config);
  CUlaunchConfig own = *config;
  own.hStream = PER_THREAD(config->hStream);
  return cuLaunchKernelEx(&own, handle, values, extra);
}

API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **values) {
  return cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, shared, PER_THREAD(stream), values);
}

API CUresult cuLaunchHostFunc_ptsz(CUstream stream, void (*function)(void *), void *data) {
  return cuLaunchHostFunc(PER_THREAD(stream), function, data);
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream) {
  return cuMemAllocAsync(address, size, PER_THREAD(stream));
}

API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
  return cuMemAllocFromPoolAsync(address, size, pool, PER_THREAD(stream));
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return cuMemFreeAsync(address, PER_THREAD(stream));
}

API CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return cuMemcpyAsync(to, from, size, PER_THREAD(stream));
}

API CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  return cuMemcpyHtoDAsync_v2(to, from, size, PER_THREAD(stream));
}

API CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  return cuMemcpyDtoHAsync_v2(to, from, size, PER_THREAD(stream));
}

API CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return cuMemcpyDtoDAsync_v2(to, from, size, PER_THREAD(stream));
}

API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *what, CUstream stream) {
  return cuMemcpy2DAsync_v2(what, PER_THREAD(stream));
}

API CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return cuMemsetD8Async(to, value, count, PER_THREAD(stream));
}

API CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return cuMemsetD16Async(to, value, count, PER_THREAD(stream));
}

API CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return cuMemsetD32Async(to, value, count, PER_THREAD(stream));
}

API CUresult cuStreamSynchronize_ptsz(CUstream handle) {
  return cuStreamSynchronize(PER_THREAD(handle));
}

API CUresult cuStreamQuery_ptsz(CUstream handle) {
  return cuStreamQuery(PER_THREAD(handle));
}

API CUresult cuStreamGetFlags_ptsz(CUstream handle, unsigned *flags) {
  return cuStreamGetFlags(PER_THREAD(handle), flags);
}

API CUresult cuStreamGetPriority_ptsz(CUstream handle, int *priority) {
  return cuStreamGetPriority(PER_THREAD(handle), priority);
}

API CUresult cuStreamGetId_ptsz(CUstream handle, unsigned long long *id) {
  return cuStreamGetId(PER_THREAD(handle), id);
}

API CUresult cuStreamGetCtx_ptsz(CUstream handle, CUcontext *context) {
  return cuStreamGetCtx(PER_THREAD(handle), context);
}

API CUresult cuStreamWaitEvent_ptsz(CUstream handle, CUevent event, unsigned flags) {
  return cuStreamWaitEvent(PER_THREAD(handle), event, flags);
}

API CUresult cuStreamBeginCapture_v2_ptsz(CUstream handle, int mode) {
  return cuStreamBeginCapture_v2(PER_THREAD(handle), mode);
}

API CUresult cuStreamEndCapture_ptsz(CUstream handle, CUgraph *graph) {
  return cuStreamEndCapture(PER_THREAD(handle), graph);
}

API CUresult cuStreamIsCapturing_ptsz(CUstream handle, int *status) {
  return cuStreamIsCapturing(PER_THREAD(handle), status);
}

API CUresult cuStreamGetCaptureInfo_ptsz(CUstream handle, int *status, uint64_t *id) {
  return cuStreamGetCaptureInfo(PER_THREAD(handle), status, id);
}

API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count) {
  return cuStreamGetCaptureInfo_v2(PER_THREAD(handle), status, id, graph, nodes, count);
}

API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes, const void **edges, size_t *count) {
  return cuStreamGetCaptureInfo_v3(PER_THREAD(handle), status, id, graph, nodes, edges, count);
}

API CUresult cuEventRecord_ptsz(CUevent event, CUstream handle) {
  return cuEventRecord(event, PER_THREAD(handle));
}

API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream handle, unsigned flags) {
  return cuEventRecordWithFlags(event, PER_THREAD(handle), flags);
}

API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream handle) {
  return cuGraphUpload(exec, PER_THREAD(handle));
}

API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream handle) {
  return cuGraphLaunch(exec, PER_THREAD(handle));
}
