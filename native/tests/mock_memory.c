/* Memory of devices and of the host, and copies. */
#include <stdlib.h>
#include <string.h>

#include "mock.h"

/* A capture in another mode than relaxed forbids this call; it is broken if it is made. */
static int forbidden(void)
{
    return mock_captures > 0 && mock_capture_mode != 2;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    mock_note("alloc %zu mode %d captures %d", size, mock_capture_mode, mock_captures);
    if (forbidden())
        return 900;
    if (mock_failing("cuMemAlloc_v2"))
        return 2;
    *address = (CUdeviceptr)(uintptr_t)malloc(size);
    return 0;
}

API CUresult cuMemFree_v2(CUdeviceptr address)
{
    free((void *)(uintptr_t)address);
    return 0;
}

API CUresult cuMemHostRegister_v2(void *memory, size_t size, unsigned flags)
{
    (void)memory;
    mock_note("register %zu flags %u", size, flags);
    return mock_failing("cuMemHostRegister_v2") ? 2 : 0;
}

API CUresult cuMemHostUnregister(void *memory)
{
    (void)memory;
    return 0;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned flags)
{
    (void)flags;
    *address = (CUdeviceptr)(uintptr_t)memory;
    return 0;
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D_v2 *copy, CUstream stream)
{
    (void)stream;
    if (mock_failing("cuMemcpy2DAsync_v2"))
        return 700;
    for (size_t i = 0; i < copy->Height; i++)
        memcpy((char *)(uintptr_t)copy->dstDevice + i * copy->dstPitch,
               (const char *)copy->srcHost + i * copy->srcPitch, copy->WidthInBytes);
    return 0;
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream)
{
    (void)stream;
    memset((void *)(uintptr_t)to, value, size);
    return 0;
}
