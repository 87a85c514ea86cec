/* Memory that programs map themselves, and probes that read while it goes. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../agent/layout.h"
#include "mock.h"

static uint64_t reserved = 0x700000000000; /* addresses only: nothing reads there */
static CUmemGenericAllocationHandle last_handle = 100;

API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment,
                                 CUdeviceptr wanted, unsigned long long flags)
{
    (void)alignment, (void)wanted, (void)flags;
    *address = reserved;
    reserved += size;
    return 0;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    (void)address, (void)size;
    mock_note_table("address free");
    return 0;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                         const CUmemAllocationProp *properties, unsigned long long flags)
{
    (void)size, (void)properties, (void)flags;
    *handle = ++last_handle;
    return 0;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from,
                                            int type)
{
    (void)from, (void)type;
    *handle = ++last_handle;
    return 0;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    (void)handle;
    return 0;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)offset, (void)flags;
    mock_note("map %llx+%zu handle %llu", address, size, handle);
    return 0;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *descriptions,
                            size_t count)
{
    (void)address, (void)size, (void)descriptions, (void)count;
    mock_note_table("access");
    return mock_failing("cuMemSetAccess") ? 1 : 0;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    (void)address, (void)size;
    mock_note_table("unmap");
    return 0;
}

/* A probe that reads by the table as it is now, for so long. */
static void *read_by_table(void *counter)
{
    usleep(300000);
    mock_note("the reader leaves");
    __atomic_fetch_sub((uint64_t *)counter, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

API void mock_read_by_table(void);
void mock_read_by_table(void)
{
    uint64_t table = mock_current->arena + strtoul(getenv("MOCK_TABLE"), NULL, 0), state;
    memcpy(&state, (void *)(uintptr_t)table, sizeof state);
    uint64_t *counter = (uint64_t *)(uintptr_t)(table + EGPU_ALLOCATIONS_READERS +
                                                5 * EGPU_ALLOCATIONS_STRIDE +
                                                (state >> 16 & 1) * sizeof *counter);
    pthread_t thread;
    __atomic_fetch_add(counter, 1, __ATOMIC_SEQ_CST);
    if (pthread_create(&thread, NULL, read_by_table, counter) != 0 || pthread_detach(thread) != 0)
        abort();
}
