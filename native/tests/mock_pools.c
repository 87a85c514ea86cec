/* Memory of pools.  A pool lies on one device; others may read it if they were given access. */
#include <stdlib.h>

#include "mock.h"

struct pool {
    int device, readable[2];
};

static struct pool pools[2] = {{0, {1, 0}}, {1, {0, 1}}}; /* each device's own */

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    *pool = (CUmemoryPool)&pools[device];
    return 0;
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location)
{
    *flags = ((struct pool *)pool)->readable[location->id] ? 3 : 0;
    return 0;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    mock_note_table("pool access");
    for (size_t i = 0; i < count; i++)
        ((struct pool *)pool)->readable[map[i].location.id] = (map[i].flags & 1) != 0;
    return 0;
}

static CUresult allocate(CUdeviceptr *address, size_t size, const char *how)
{
    *address = (CUdeviceptr)(uintptr_t)malloc(size);
    mock_note("%s %llx+%zu", how, *address, size);
    return 0;
}

API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
    (void)stream;
    return allocate(address, size, "pool-alloc");
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
    (void)stream;
    return allocate(address, size, "pool-alloc-ptsz");
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool,
                                     CUstream stream)
{
    (void)pool, (void)stream;
    return allocate(address, size, "pool-alloc-from");
}

API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool,
                                          CUstream stream)
{
    (void)pool, (void)stream;
    return allocate(address, size, "pool-alloc-from-ptsz");
}

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    (void)stream;
    mock_note_table("pool free");
    free((void *)(uintptr_t)address);
    return 0;
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return cuMemFreeAsync(address, stream);
}
