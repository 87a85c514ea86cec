/* Memory of devices and of the host, and copies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../agent/layout.h"
#include "mock.h"

/* A capture in another mode than relaxed forbids this call; it is broken if it is made. */
static int forbidden(void)
{
    return mock_captures > 0 && mock_capture_mode != 2;
}

static unsigned long number_of(const char *variable)
{
    const char *given = getenv(variable);
    return given != NULL ? strtoul(given, NULL, 0) : 0;
}

void mock_note_table(const char *when)
{
    uint64_t arena = mock_current != NULL ? mock_current->arena : 0, state, row[2];
    char list[400] = "";
    if (arena == 0)
        return;
    arena += number_of("MOCK_TABLE");
    memcpy(&state, (void *)(uintptr_t)arena, sizeof state);
    uint64_t half = arena + EGPU_ALLOCATIONS_HEADER +
                    (state >> 16 & 1) * EGPU_ALLOCATIONS_LIMIT * EGPU_ALLOCATIONS_ROW;
    for (uint64_t i = 0, at = 0; i < (state & 0xffff) && i < 8; i++) {
        memcpy(row, (void *)(uintptr_t)(half + i * EGPU_ALLOCATIONS_ROW), sizeof row);
        at += (uint64_t)snprintf(list + at, sizeof list - at, " %llx+%llu",
                                 (unsigned long long)row[0], (unsigned long long)(row[1] - row[0]));
    }
    mock_note("table at %s: %llu rows%s", when, (unsigned long long)(state & 0xffff), list);
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    mock_note("alloc %zu mode %d captures %d", size, mock_capture_mode, mock_captures);
    if (forbidden())
        return 900;
    if (mock_failing("cuMemAlloc_v2"))
        return 2;
    *address = (CUdeviceptr)(uintptr_t)malloc(size);
    if (size == number_of("MOCK_ARENA"))
        mock_current->arena = *address;
    return 0;
}

API CUresult cuMemFree_v2(CUdeviceptr address)
{
    mock_note_table("free");
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
    if (mock_current == NULL)
        return 201;
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void)stream;
    if (mock_current == NULL)
        return 201;
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
