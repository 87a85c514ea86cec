/* Calls that give and take device memory of one context: cuMemAlloc and its like, and pools.
 *
 * Memory of a pool is freed in the order of a stream, but leaves the table when the call is made:
 * kernels before it in the stream that run later get -EFAULT there, which is safe; the driver may
 * take the memory back at any later call.  It does so for memory that was freed only, so neither
 * cuMemPoolTrimTo nor cuMemPoolDestroy changes what may be read.
 *
 * Memory that a graph's node gives (a capture makes such nodes, too) is there in parts of the
 * graph's runs only; what cuMemPoolImportPointer and cuIpcOpenMemHandle give is another process's
 * to free.  Neither gets into the table. */
#include "agent.h"

static void allocated(CUdeviceptr address, size_t size)
{
    CUcontext context = NULL;
    if (CALL(cuCtxGetCurrent, &context) == CUDA_SUCCESS && context != NULL)
        egpu_allocations_add(
            (struct allocation){.start = address, .end = address + size, .context = context});
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    CUresult result = CALL(cuMemAlloc_v2, address, size);
    if (result == CUDA_SUCCESS && address != NULL && egpu_allocations_wanted())
        allocated(*address, size);
    return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                            unsigned element)
{
    CUresult result = CALL(cuMemAllocPitch_v2, address, pitch, width, height, element);
    if (result == CUDA_SUCCESS && address != NULL && pitch != NULL && egpu_allocations_wanted())
        allocated(*address, *pitch * height);
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
    CUresult result = CALL(cuMemAllocManaged, address, size, flags);
    if (result == CUDA_SUCCESS && address != NULL && egpu_allocations_wanted())
        allocated(*address, size);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    if (egpu_allocations_wanted())
        egpu_allocations_remove(address, 1);
    return CALL(cuMemFree_v2, address);
}

static CUstream own(CUstream stream)
{
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

/* Whether memory that the stream gives now may be known: not if it becomes a graph's, or if the
 * driver does not say. */
static bool plain(CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return egpu_allocations_wanted() &&
           CALL(cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The stream's context and its device, of which the driver says that it may read the pool.  The
 * pool that a stream's device has is its own, and may always be read by it. */
static bool describe(struct allocation *one, CUstream stream)
{
    bool special = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    CUcontext before = NULL;
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    int flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (CALL(cuCtxGetCurrent, &before) != CUDA_SUCCESS)
        return false;
    one->context = before;
    if (!special && CALL(cuStreamGetCtx, stream, &one->context) != CUDA_SUCCESS)
        return false;
    if (one->context == NULL)
        return false;
    bool found = one->context == before || CALL(cuCtxSetCurrent, one->context) == CUDA_SUCCESS;
    if (found) {
        found = CALL(cuCtxGetDevice, &location.id) == CUDA_SUCCESS;
        if (one->context != before)
            CALL(cuCtxSetCurrent, before);
    }
    one->devices = found ? egpu_device_bit(location.id) : 0;
    if (one->devices == 0)
        return false;
    return one->pool == NULL || (CALL(cuMemPoolGetAccess, &flags, one->pool, &location) ==
                                     CUDA_SUCCESS &&
                                 (flags & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0);
}

/* plain() before the call and here: a capture that another thread begins meanwhile is not missed. */
static CUresult pooled(CUresult result, bool known, const CUdeviceptr *address, size_t size,
                       CUmemoryPool pool, CUstream stream)
{
    if (result != CUDA_SUCCESS || !known || address == NULL || !plain(stream))
        return result;
    struct quiet quiet = egpu_quiet();
    struct allocation one = {.start = *address, .end = *address + size, .pool = pool};
    int mode = egpu_relax();
    bool described = describe(&one, stream);
    egpu_restore(mode);
    if (described)
        egpu_allocations_add(one);
    egpu_loud(quiet);
    return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
    bool known = plain(stream);
    return pooled(CALL(cuMemAllocAsync, address, size, stream), known, address, size, NULL, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
    bool known = plain(own(stream));
    return pooled(CALL(cuMemAllocAsync_ptsz, address, size, stream), known, address, size, NULL,
                  own(stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool,
                                 CUstream stream)
{
    bool known = plain(stream) && pool != NULL;
    return pooled(CALL(cuMemAllocFromPoolAsync, address, size, pool, stream), known, address, size,
                  pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool,
                                      CUstream stream)
{
    bool known = plain(own(stream)) && pool != NULL;
    return pooled(CALL(cuMemAllocFromPoolAsync_ptsz, address, size, pool, stream), known, address,
                  size, pool, own(stream));
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    if (egpu_allocations_wanted())
        egpu_allocations_remove(address, 1);
    return CALL(cuMemFreeAsync, address, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    if (egpu_allocations_wanted())
        egpu_allocations_remove(address, 1);
    return CALL(cuMemFreeAsync_ptsz, address, stream);
}

struct revoked {
    CUmemoryPool pool;
    uint64_t devices;
};

static bool still_readable(struct allocation *one, const void *what)
{
    const struct revoked *revoked = what;
    return one->pool != revoked->pool || (one->devices & revoked->devices) == 0;
}

/* Access that is given later counts for what is allocated then. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    struct revoked revoked = {.pool = pool};
    for (size_t i = 0; pool != NULL && map != NULL && i < count; i++)
        if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            (map[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ) == 0)
            revoked.devices |= egpu_device_bit(map[i].location.id);
    if (revoked.devices != 0 && egpu_allocations_wanted()) {
        struct allocations_change change = egpu_allocations_change();
        egpu_allocations_each(0, UINT64_MAX, still_readable, &revoked);
        egpu_allocations_changed(change);
    }
    return CALL(cuMemPoolSetAccess, pool, map, count);
}

static bool of_a_context(struct allocation *one, const void *what)
{
    (void)what;
    return one->devices == 0;
}

/* Whether mappings and pools outlive it, on whichever device they lie, is said nowhere. */
void egpu_memory_primary_ended(void)
{
    if (!egpu_allocations_wanted())
        return;
    struct allocations_change change = egpu_allocations_change();
    egpu_allocations_each(0, UINT64_MAX, of_a_context, NULL);
    egpu_allocations_changed(change);
}
