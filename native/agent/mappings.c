/* Memory that the process maps itself: cuMemCreate, cuMemMap, cuMemSetAccess.  The kernels of a
 * device may read a mapping once the device was given access, in all of its contexts.
 *
 * Known are mappings of what cuMemCreate gave as memory of a device.  What
 * cuMemImportFromShareableHandle gives may be on another machine, and what cuMulticastCreate gives
 * is not read by plain loads: their handles are unknown, and so are their mappings. */
#include <stdlib.h>
#include <string.h>

#include "agent.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemGenericAllocationHandle *handles; /* in no order */
static size_t count, room;

static void remember(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock);
    if (count == room) {
        size_t more = room != 0 ? 2 * room : 64;
        CUmemGenericAllocationHandle *grown = realloc(handles, more * sizeof *grown);
        if (grown != NULL) {
            handles = grown;
            room = more;
        }
    }
    if (count < room) /* else its mappings are not known */
        handles[count++] = handle;
    pthread_mutex_unlock(&lock);
}

static bool remembered(CUmemGenericAllocationHandle handle, bool release)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < count; i++)
        if (handles[i] == handle) {
            found = true;
            if (release)
                handles[i] = handles[--count];
        }
    pthread_mutex_unlock(&lock);
    return found;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUresult result = CALL(cuMemCreate, handle, size, properties, flags);
    if (result == CUDA_SUCCESS && handle != NULL && properties != NULL &&
        properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
        properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        properties->allocFlags.usage == 0 && egpu_allocations_wanted()) {
        struct quiet quiet = egpu_quiet();
        remember(*handle);
        egpu_loud(quiet);
    }
    return result;
}

/* Before the driver may give the handle to something else.  What is mapped stays mapped. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (egpu_allocations_wanted()) {
        struct quiet quiet = egpu_quiet();
        remembered(handle, true);
        egpu_loud(quiet);
    }
    return CALL(cuMemRelease, handle);
}

/* No device may read it yet. */
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult result = CALL(cuMemMap, address, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && egpu_allocations_wanted()) {
        struct quiet quiet = egpu_quiet();
        if (remembered(handle, false))
            egpu_allocations_add((struct allocation){.start = address, .end = address + size});
        egpu_loud(quiet);
    }
    return result;
}

struct access {
    uint64_t start, end;
    uint64_t given, taken; /* devices */
};

static bool take(struct allocation *one, const void *what)
{
    const struct access *access = what;
    if (one->context == NULL)
        one->devices &= ~access->taken;
    return true;
}

static bool give(struct allocation *one, const void *what)
{
    const struct access *access = what;
    if (one->context == NULL && one->start >= access->start && one->end <= access->end)
        one->devices |= access->given;
    return true;
}

static void change_access(const struct access *access,
                          bool (*keep)(struct allocation *, const void *))
{
    struct allocations_change change = egpu_allocations_change();
    egpu_allocations_each(access->start, access->end, keep, access);
    egpu_allocations_changed(change);
}

/* What is taken is taken before, what is given is given after; a device that is named for both has
 * what the driver says, which is not asked. */
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *descriptions,
                        size_t number)
{
    struct access access = {.start = address, .end = address + size};
    bool wanted = egpu_allocations_wanted() && descriptions != NULL && access.end > access.start;
    for (size_t i = 0; wanted && i < number; i++) {
        const CUmemAccessDesc *one = &descriptions[i];
        if (one->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            continue;
        if ((one->flags & CU_MEM_ACCESS_FLAGS_PROT_READ) != 0)
            access.given |= egpu_device_bit(one->location.id);
        else
            access.taken |= egpu_device_bit(one->location.id);
    }
    access.given &= ~access.taken;
    if (access.taken != 0)
        change_access(&access, take);
    CUresult result = CALL(cuMemSetAccess, address, size, descriptions, number);
    if (result == CUDA_SUCCESS && access.given != 0)
        change_access(&access, give);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    if (egpu_allocations_wanted())
        egpu_allocations_remove(address, size);
    return CALL(cuMemUnmap, address, size);
}

/* Nothing is mapped there any more if the program keeps to the driver's rules. */
CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    if (egpu_allocations_wanted())
        egpu_allocations_remove(address, size);
    return CALL(cuMemAddressFree, address, size);
}
